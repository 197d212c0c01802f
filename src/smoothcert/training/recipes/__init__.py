"""Recipes: everything about a training in one record, ours by name and your own from a file.

The YAML files beside this one hold the hyper-parameters of the papers as tables; ``mnist.yaml`` explains their layout.
"""

from smoothcert.training.recipes.loading import load_recipe, recipe_names, recipe_to_yaml

__all__ = ["load_recipe", "recipe_names", "recipe_to_yaml"]
