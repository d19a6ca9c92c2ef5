"""The settings of the training: the `train:` section of `cartpole.yaml`."""

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """The settings of the training job.

    Attributes:
        seed: Fixes environments, first weights, actions and minibatches. With the same seed on the
            same machine a run repeats itself exactly.
        environments: Number of games that each rollout worker plays side by side.
        steps: Number of steps of each game in one iteration.
        discount: Value of a reward one step later (gamma).
        gae_lambda: Position between one-step estimates (0) and whole returns (1) of the advantage.
        epochs: Number of passes over the steps of each iteration.
        minibatch: Steps of each actor in one gradient; the effective size is this times the number
            of actors.
        learning_rate: Adam's step size.
        clip: Maximum relative change of an action's probability in one iteration.
        value_coefficient: Weight of the value function's error in the loss.
        entropy_coefficient: Weight of the entropy bonus, which keeps the policy from certainty
            too early.
        max_grad_norm: Maximum length of a gradient; longer ones are shortened.
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
            ValueError: A value is missing, or a name is unknown.
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
