"""vLLM plug-in (`vllm.general_plugins`) that registers the encoder cache's connector, so that no module path is
needed."""

from __future__ import annotations

CONNECTOR = "LmqlLiteECConnector"


def register() -> None:
    """Registers the connector, which is imported when a configuration names it. May be called repeatedly; does nothing
    in a vLLM that has no such connectors."""
    try:
        from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory
    except ImportError:
        return
    if CONNECTOR not in ECConnectorFactory._registry:
        ECConnectorFactory.register_connector(CONNECTOR, "lmql_lite.integrations.vllm_ec", CONNECTOR)
