"""Models behind an HTTP endpoint, as black boxes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import requests
import torch
from torch import Tensor, nn

from smoothcert.models.loaded import LoadedModel
from smoothcert.types import SmoothcertError, UsageError

_WAITS = (0.5, 1.0, 2.0, 4.0)
_AGAIN = {429, 500, 502, 503, 504}


class Endpoint(nn.Module):
    """A model that answers POST requests in the protocol of TensorFlow Serving and KServe V1.

    The request is ``{"instances": [...]}``, a nested list per input, and the answer ``{"predictions": [...]}``, a list
    of scores per input. Overload (429), failures of the server (5xx) and lost connections are tried again.

    Args:
        url: The address.
        batch_size: The largest number of inputs in a request.
        timeout: Seconds to wait for an answer.
    """

    remote = True

    def __init__(self, url: str, batch_size: int = 64, timeout: float = 60.0) -> None:
        super().__init__()
        self.url, self.batch_size, self.timeout = url, batch_size, timeout

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self._answer(part) for part in torch.split(x, self.batch_size)])

    def _answer(self, rows: Tensor) -> Tensor:
        body, said = {"instances": rows.tolist()}, ""
        for wait in (*_WAITS, None):
            try:
                answer = requests.post(self.url, json=body, timeout=self.timeout)
                if answer.status_code == 200:
                    return self._scores(answer, rows)
                said = f"it answers {answer.status_code}"
                if answer.status_code not in _AGAIN:
                    break
            except requests.RequestException as error:
                said = f"it cannot be reached ({type(error).__name__})"
            if wait is not None:
                time.sleep(wait)
        raise SmoothcertError(f"the model at {self.url} returned no scores: {said}; check the server and the address.")

    def _scores(self, answer: requests.Response, rows: Tensor) -> Tensor:
        try:
            scores = torch.tensor(answer.json()["predictions"], dtype=rows.dtype, device=rows.device)
        except (ValueError, KeyError, TypeError) as error:
            raise SmoothcertError(
                f'the model at {self.url} must answer {{"predictions": [[scores of one input], …]}}, but answered '
                f"{answer.text[:80]!r}."
            ) from error
        return scores


def load_endpoint(text: str, options: Mapping[str, Any]) -> LoadedModel:
    """Load a model behind an endpoint; ``options``: ``batch_size`` and ``timeout``."""
    unknown = set(options) - {"batch_size", "timeout"}
    if unknown:
        raise UsageError(f"an endpoint has no option {', '.join(sorted(unknown))}; it takes batch_size and timeout.")
    address = urlsplit(text)
    if not address.hostname:
        raise UsageError(f"'{text}' is not an address; give one like http://localhost:8501/v1/models/net:predict.")
    return LoadedModel(model=Endpoint(text, **options).eval(), name=address.hostname, source={"endpoint": text})
