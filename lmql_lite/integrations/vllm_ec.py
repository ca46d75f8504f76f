"""Encoder cache of vLLM: a connector for `--ec-transfer-config`, over `EncoderCache`.

    vllm serve MODEL --ec-transfer-config '{
        "ec_connector": "LmqlLiteECConnector",
        "ec_role": "ec_both",
        "ec_connector_module_path": "lmql_lite.integrations.vllm_ec"}'

The options are those of `EncoderCache`: a file named by `LMCACHE_CONFIG_FILE`, `LMCACHE_EC_*`, or keys of
`ec_connector_extra_config`. The methods take the arguments of all releases of vLLM that have such connectors.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorMetadata

from lmql_lite.cache.encoder import EncoderCache
from lmql_lite.cache.kv.config import KVCacheConfig

_LOG = logging.getLogger(__name__)
_REMEMBERED = 100_000


@dataclass
class ItemsToLoad(ECConnectorMetadata):  # type: ignore[misc]
    """Hashes of the items that a worker loads before a step."""

    mm_hashes: list[str] = field(default_factory=list)


class LmqlLiteECConnector(ECConnectorBase):  # type: ignore[misc]
    """Connector of the scheduler or of a worker. Connectors in one process share a cache; others share its disk or
    Redis.

    An item is reported as known only after its entry has been read and verified, because vLLM cannot fall back to the
    encoder.
    """

    _caches: ClassVar[dict[str, EncoderCache]] = {}
    """Cache of each engine in this process, by its id."""
    _opening: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, vllm_config: Any, role: Any, *more: Any, **others: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role)
        logging.getLogger("lmql_lite").parent = logging.getLogger("vllm")  # so that its log has our lines
        transfer, model = vllm_config.ec_transfer_config, vllm_config.model_config
        engine = str(getattr(transfer, "engine_id", ""))
        with self._opening:
            if engine not in self._caches:
                overrides = dict(getattr(transfer, "ec_connector_extra_config", None) or {})
                config = KVCacheConfig.load(overrides.pop("config_file", None), overrides, layer="ec")
                self._caches[engine] = EncoderCache(config, str(model.model), model.dtype, transfer.ec_role)
            self._cache = self._caches[engine]
        self._engine = engine
        self._to_load: set[str] = set()
        self._verified: dict[str, None] = {}

    # The scheduler's side -------------------------------------------------------------------------------------------

    def has_cache_item(self, identifier: str, *more: Any, **others: Any) -> bool:
        """True if the item's encoder output can be loaded. Loads it into memory, and counts a hit or a miss."""
        is_known = self._is_known(identifier)
        if self._cache.is_consumer:
            self._cache.count(is_known)
        return is_known

    def _is_known(self, identifier: str) -> bool:
        if not self._cache.is_consumer or not self._cache.contains(identifier):
            self._verified.pop(identifier, None)
            return False
        if identifier not in self._verified:
            if self._cache.load(identifier) is None:
                return False
            self._verified[identifier] = None
            if len(self._verified) > _REMEMBERED:
                del self._verified[next(iter(self._verified))]
        return True

    def has_caches(self, request: Any, *more: Any, **others: Any) -> list[bool]:
        """`has_cache_item` of each item of a request, for older releases."""
        return [self.has_cache_item(identifier) for identifier in _identifiers(request)]

    def update_state_after_alloc(self, request: Any, index: int, *more: Any, **others: Any) -> None:
        """Notes an item whose encoder output the worker is to load."""
        identifier = _identifiers(request)[index]
        if self._is_known(identifier):
            self._to_load.add(identifier)

    def build_connector_meta(self, scheduler_output: Any, *more: Any, **others: Any) -> ItemsToLoad:
        """Items for the workers to load in the next step."""
        meta, self._to_load = ItemsToLoad(sorted(self._to_load)), set()
        return meta

    def maybe_update_remote_cache_state(self, *more: Any, **others: Any) -> None:
        """Nothing: no state is kept elsewhere."""

    # The worker's side ----------------------------------------------------------------------------------------------

    def start_load_caches(self, encoder_cache: dict[str, Any], *more: Any, **others: Any) -> None:
        """Loads the items of the step that `encoder_cache` lacks. A miss stays absent."""
        meta = others.get("metadata") or self._connector_metadata
        if not self._cache.is_consumer or meta is None:
            return
        for identifier in meta.mm_hashes:
            if identifier not in encoder_cache:
                found = self._cache.load(identifier, _device())  # counted when the scheduler asked for it
                if found is None or len(found.tensors) != 1:
                    _LOG.warning("EC get: mm_hash=%s is gone", identifier)
                else:
                    (encoder_cache[identifier],) = found.tensors.values()

    def save_caches(self, encoder_cache: dict[str, Any], mm_hash: str, *more: Any, **others: Any) -> None:
        """Stores the encoder's output of an item, unless this instance only consumes."""
        if self._cache.is_producer and mm_hash in encoder_cache:
            self._cache.put(mm_hash, encoder_cache[mm_hash])

    def wait_for_load(self, *more: Any, **others: Any) -> None:
        """Nothing: `start_load_caches` returns when all is loaded."""

    def shutdown(self) -> None:
        """Closes the cache. A second call does nothing."""
        with self._opening:
            cache = self._caches.pop(self._engine, None)
        if cache is not None:
            cache.close()


LMCacheECConnector = LmqlLiteECConnector
"""The same by the name that configurations for LMCache have."""


def _identifiers(request: Any) -> list[str]:
    """Hash of each item of a request, in any release."""
    features = getattr(request, "mm_features", None)
    return list(request.mm_hashes) if features is None else [feature.identifier for feature in features]


def _device() -> str:
    """Device of this worker."""
    from vllm.platforms import current_platform

    kind = str(current_platform.device_type)
    current = getattr(current_platform, "current_device", None)
    return f"{kind}:{current()}" if kind != "cpu" and current is not None else kind
