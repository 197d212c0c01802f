"""Recipes: complete trainings, by name or from a YAML file.

The YAML files next to this one have the hyper-parameters of the papers as tables; ``mnist.yaml`` explains the layout.
"""

from smoothcert.training.recipes.loading import load_recipe, recipe_names, recipe_to_yaml

__all__ = ["load_recipe", "recipe_names", "recipe_to_yaml"]
