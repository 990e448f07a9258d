"""The entry point: vLLM calls `register` in every process it starts, before it reads any configuration."""

from __future__ import annotations

import os

from vegas_spec.vllm.start import hooks, patches


def register() -> None:
    """Teach vLLM the method ``vegas``; do nothing for engines that do not ask for it.

    Safe to call any number of times. ``VEGAS_DISABLE=1`` leaves vLLM untouched. Where the running vLLM lacks something
    that we need, vLLM stays as it is, except that asking for ``vegas`` raises an error that says what is missing.
    """
    if os.environ.get("VEGAS_DISABLE") == "1":
        return
    from vllm.logger import init_logger

    # vLLM loads plugins before it configures logging for other names than its own.
    logger = init_logger("vllm.vegas")
    try:
        missing = hooks.faults((*hooks.CONFIGURATION, *hooks.platform_hooks()))
        if missing:
            logger.warning(hooks.mismatch_message(missing))
            patches.refuse_vegas(hooks.mismatch_message(missing))
        else:
            patches.apply()
    except Exception:
        # Whatever a future vLLM changes, a user who never asked for Vegas must not notice that it is installed.
        logger.exception("vegas could not register and is off; vLLM itself is not affected")
