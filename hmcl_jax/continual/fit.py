"""The training of all seeds on one task, read from top to bottom.

The host loops over epochs, probes and feeds; what is compiled is small and comes from
:class:`hmcl_jax.continual.programs.Programs`. Per epoch there is one optimizer step on the sum of
the gradients of all minibatches, or one per minibatch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hmcl_jax.continual.feed import TaskFeed
from hmcl_jax.continual.gradients import Total
from hmcl_jax.continual.method import Heads, Method, TrainState
from hmcl_jax.continual.programs import Programs


def fit_task(
    programs: Programs,
    method: Method,
    parts: Sequence[TaskFeed],
    state: TrainState,
    shared: Any,
    epochs: int,
    on_epoch: Callable[[int, int], None],
) -> tuple[TrainState, np.ndarray, dict[str, np.ndarray]]:
    """Trains all seeds on `parts`: the task, and further ones whose gradients each step adds.

    Returns:
      The state, mean losses of a minibatch and step metrics, each ``(seeds, epochs)``.
    """
    spec, num_minibatches = parts[0].spec, sum(part.num_minibatches for part in parts)
    total_minibatches = programs.mesh.replicate(np.int32(num_minibatches))
    # A sum of no minibatches, for all seeds; numpy's zeros need no compiled program.
    no_gradient: Any = jax.tree.map(lambda W: np.zeros(W.shape, W.dtype), state.heads)
    some = next(iter(no_gradient.values()))
    no_loss: Any = np.zeros(len(some), some.dtype)
    zero = programs.mesh.shard_seeds(Total(no_gradient, no_loss))
    history: list[Any] = []
    for epoch in range(epochs):
        loss, metrics = zero.loss, {}
        if spec.train.step == "minibatch":
            for part in parts:
                for feed in part.feeds(epoch):
                    step_each = programs.step_each(method, part.spec)
                    state, loss, metrics = step_each(state, shared, loss, feed)
        else:
            gradients: tuple[Heads, ...] = ()
            for number in range(1 if method.per_minibatch else len(method.probes(spec))):
                point = programs.probe(method, spec, number)(state, shared, gradients)
                total = zero
                for part in parts:
                    accumulate = programs.accumulate(method, part.spec)
                    for feed in part.feeds(epoch):
                        before, total = total, accumulate(state, shared, point, total, feed)
                        # The next feed is prepared while the device works on this one. Waiting for
                        # the feed before keeps at most two on the device.
                        jax.block_until_ready(before)
                loss = loss if gradients else total.loss
                gradients = (*gradients, total.gradient)
            update = programs.update(method, spec)
            state, metrics = update(state, shared, gradients, total_minibatches)
        history.append((loss, metrics))
        jax.block_until_ready(loss)
        on_epoch(epoch + 1, epochs)
    history = jax.device_get(programs.mesh.whole(history))
    losses = np.stack([loss for loss, _ in history], axis=1) / num_minibatches
    curves = {
        name: np.stack([metrics[name] for _, metrics in history], axis=1) for name in history[0][1]
    }
    return state, losses, curves
