"""What the job itself can be told: the `train:` section of `cartpole.yaml`."""

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """The numbers of the training job.

    Attributes:
        seed: Fixes environments, first weights, actions and minibatches. With the same seed on the
            same machine a run repeats itself exactly.
        environments: How many games each rollout worker plays side by side.
        steps: How many steps of each game make one iteration.
        discount: What a reward is worth one step later (gamma).
        gae_lambda: Between one-step estimates (0) and whole returns (1) of the advantage.
        epochs: How often each iteration's steps are gone through.
        minibatch: Steps of each actor in one gradient; the effective size is this times the actors.
        learning_rate: Adam's step size.
        clip: How far one iteration may move an action's probability.
        value_coefficient: Weight of the value function's error in the loss.
        entropy_coefficient: Weight of the bonus for not being sure too early.
        max_grad_norm: Longer gradients are shortened to this.
    """

    seed: int
    environments: int
    steps: int
    discount: float
    gae_lambda: float
    epochs: int
    minibatch: int
    learning_rate: float
    clip: float
    value_coefficient: float
    entropy_coefficient: float
    max_grad_norm: float

    @classmethod
    def from_mapping(cls, section: Mapping[str, Any]) -> "Settings":
        """Read the section.

        Raises:
            ValueError: A value is missing, or there is one that the job does not know.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for key in section:
            if key not in names:
                near = difflib.get_close_matches(str(key), names, n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"expected: {', '.join(names)}"
                raise ValueError(f"train.{key}: unknown setting; {hint}")
        if missing := [name for name in names if name not in section]:
            raise ValueError(f"train: missing {', '.join(missing)}")
        return cls(**section)
