"""Configuration of the engine, with LMCache's names: from a YAML file, the environment and arguments.

Later sources override earlier ones: default, file, `LMCACHE_<KEY>`, `LMQL_CACHE_<KEY>`, arguments.
`LMCACHE_CONFIG_FILE` or `LMQL_CACHE_CONFIG_FILE` names the file. Both generations of LMCache's keys are understood: the
old `local_device` stands for the new `local_cpu` and `local_disk`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from lmql_lite.cache.kv.layout import TOKEN_AXIS
from lmql_lite.cache.kv.pages import KVError, dtype_name
from lmql_lite.errors import did_you_mean
from lmql_lite.store.disk import DiskTier
from lmql_lite.store.redis import RedisTier
from lmql_lite.store.tier import MemoryTier, Store
from lmql_lite.store.tiered import Tiered

_GIB = 1 << 30
_DEFAULT_DISK_GIB = 64.0
_PREFIXES = ("LMCACHE_", "LMQL_CACHE_")
_LOSSLESS = ("torch", "safetensor", "naive")
_OTHER_LAYER = re.compile("ec_.*|ec")
"""Keys of the encoder cache, which may be in the same file."""
_KEY = re.compile("[^@]*(@[^@]*){5,}")
"""Pattern of the keys of pages, since another cache may have its entries in the same folder."""
_URL = re.compile(r"(redis|rediss|valkey|valkeys)://([^/@,]*@)?[^/,:@]+:\d+(/\d*)?|unix://.+")


@dataclass(frozen=True)
class KVCacheMetadata:
    """Identity of keys and values: caches that differ in any field share nothing.

    `fmt` is the layout, `huggingface` or `vllm`. `dtype` is torch's or LMCache's name. `fingerprint` identifies the
    weights, for example `model_fingerprint(network)`, because a name is not enough.
    """

    model_name: str
    world_size: int = 1
    worker_id: int = 0
    fmt: str = "huggingface"
    dtype: str = "float32"
    fingerprint: str = ""

    def __post_init__(self) -> None:
        if self.fmt not in TOKEN_AXIS:
            raise KVError(f"{self.fmt!r} is not a layout", hint=f"one of {', '.join(TOKEN_AXIS)}")
        object.__setattr__(self, "dtype", dtype_name(self.dtype))


@dataclass(frozen=True)
class KVCacheConfig:
    """Options of the engine. Sizes are in GiB, as in LMCache; each tier has its own limit.

    KVCacheConfig(local_disk="/var/cache/kv", max_local_disk_size=20.0)
    KVCacheConfig.load("lmcache.yaml", {"chunk_size": 128})
    """

    chunk_size: int = 256
    """Number of tokens of a page."""
    local_cpu: bool = True
    max_local_cpu_size: float = 5.0
    local_disk: str | None = None
    """Folder, as a path or as `file:///folder/`."""
    max_local_disk_size: float = 0.0
    """0 with a folder means 64 GiB."""
    remote_url: str | None = None
    """`redis://host:port`, `rediss://`, `valkey://` or `unix://path`."""
    max_remote_size: float = 64.0
    remote_timeout: float = 0.25
    """Time-out of a connection or an answer, in seconds."""
    remote_serde: str = "safetensor"
    """Accepted for compatibility: pages are always safetensors bytes."""
    pipelined_backend: bool = False
    """True if a thread writes to tiers below memory."""
    save_unfull_chunk: bool = True
    """True to store the last page of a sequence even if it is not full."""
    save_decode_cache: bool = False
    """True to store pages of generated tokens too (`KVCacheEngine.save_decoded`)."""
    cache_policy: str = "LRU"
    cache_salt: str = ""
    """Beginning of the hash chain: users with different salts do not see each other's pages."""
    notices: tuple[str, ...] = field(default=(), compare=False)
    """Sentences about options that were ignored."""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Source of each value other than the default."""

    def __post_init__(self) -> None:
        folder = self.local_disk
        if folder is not None:
            object.__setattr__(self, "local_disk", re.sub("^file://(localhost)?", "", folder) or None)
        if self.chunk_size < 1:
            raise KVError(f"chunk_size is {self.chunk_size}", hint="write 1 or more tokens; the default is 256")
        if min(self.max_local_cpu_size, self.max_local_disk_size, self.max_remote_size, self.remote_timeout) < 0:
            raise KVError("a size or time-out of the cache is negative", hint="sizes are in GiB, time-outs in seconds")
        if self.remote_url is not None and not _URL.fullmatch(self.remote_url):
            raise KVError(f"remote_url {self.remote_url!r} is not supported", hint="such as redis://localhost:6379")
        if self.remote_serde not in _LOSSLESS:
            raise KVError(
                f"remote_serde {self.remote_serde!r} is not supported, because pages are stored losslessly",
                hint=f"one of {', '.join(_LOSSLESS)}",
            )
        if self.cache_policy.upper() != "LRU":
            raise KVError(f"cache_policy {self.cache_policy!r} is not supported", hint="write LRU")

    @classmethod
    def load(
        cls,
        file: str | Path | None = None,
        overrides: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        layer: str = "",
    ) -> KVCacheConfig:
        """Config from all sources. `environment` is by default that of the process.

        `layer` names another cache whose options override these: `ec` for the encoder cache. Its keys `ec_<key>` and
        those under `ec:` in the file, then `LMCACHE_EC_<KEY>` and `LMQL_CACHE_EC_<KEY>`, override all keys without the
        layer. A config with a layer always has a memory tier.

        Raises KVError for an unusable file, and for a wrong value in it or in `overrides`. A wrong value in the
        environment gives a notice and is ignored.
        """
        environment = os.environ if environment is None else environment
        named = environment.get("LMQL_CACHE_CONFIG_FILE") or environment.get("LMCACHE_CONFIG_FILE")
        path = file or named
        values = _read_yaml(Path(path)) if path else {}
        config = cls()._with(values, str(path))._with_environment(environment, "")
        if layer:
            nested, flat = values.get(layer) or {}, layer + "_"
            if not isinstance(nested, Mapping):
                raise KVError(f"{path}: {layer} is {nested!r}", hint="write a map of keys and values")
            own = {key.removeprefix(flat): value for key, value in values.items() if key.startswith(flat)}
            config = config._with({**nested, **own}, f"{path}, {layer}")
            config = config._with_environment(environment, flat.upper())
        config = config._with(overrides or {}, "argument")
        if layer:
            config = replace(config, local_cpu=True, max_local_cpu_size=config.max_local_cpu_size or 1.0)
        config._require_tier()
        return config

    def _with_environment(self, environment: Mapping[str, str], layer: str) -> KVCacheConfig:
        """Config with the variables `<prefix><layer><KEY>`. Wrong values give notices."""
        config = self
        for prefix in _PREFIXES:
            for name in sorted(environment):
                key = name.removeprefix(prefix + layer).lower()
                known = key in _KEYS or layer or prefix == _PREFIXES[1]  # others are those of LMCache's servers
                if name.startswith(prefix + layer) and key != "config_file" and known:
                    try:
                        config = config._with({key: environment[name]}, name)
                    except KVError as error:
                        config = replace(config, notices=(*config.notices, f"{name} is ignored: {error.message}"))
        return config

    def _with(self, values: Mapping[str, object], origin: str) -> KVCacheConfig:
        """Config with further values of one source, which are checked together."""
        changed: dict[str, Any] = {}
        notices = list(self.notices)
        for key, value in values.items():
            if key == "local_device":
                device = _parsed(key, value, str)
                is_memory = device is not None and device.split(":")[0] in ("cpu", "cuda")
                changed |= {"local_cpu": is_memory, "local_disk": None if is_memory else device}
            elif _OTHER_LAYER.fullmatch(str(key)):
                continue
            elif key in _KEYS:
                changed[key] = _parsed(key, value, _KEYS[key])
            else:
                hint = did_you_mean(str(key), _KEYS)
                notices.append(f"{origin}: {key} has no effect here" + (f" ({hint})" if hint else ""))
        origins = {**self.origins, **dict.fromkeys(changed, origin)}
        return replace(self, **changed, notices=tuple(notices), origins=origins)

    def _require_tier(self) -> None:
        if not (self.local_cpu or self.local_disk or self.remote_url):
            raise KVError("the cache has no tier", hint="set local_cpu, local_disk or remote_url")

    def open_tiers(self, namespace: str = "kv", keys: re.Pattern[str] = _KEY, *, reads_only: bool = False) -> Tiered:
        """Tiers of this config, from fast to slow, for keys that match `keys`. With `reads_only`, files are not
        changed. Raises CacheError if there is no tier or redis is not installed."""
        self._require_tier()
        tiers: list[Store] = []
        if self.local_cpu:
            tiers.append(MemoryTier(int(self.max_local_cpu_size * _GIB)))
        if self.local_disk is not None:
            size = self.max_local_disk_size or _DEFAULT_DISK_GIB
            tiers.append(
                DiskTier(Path(self.local_disk).expanduser(), int(size * _GIB), ".pt", keys, reads_only=reads_only)
            )
        if self.remote_url is not None:
            most = int(self.max_remote_size * _GIB)
            tiers.append(RedisTier(self.remote_url, namespace, most, self.remote_timeout))
        return Tiered(tiers, write_behind=self.pipelined_backend)


_KEYS = {"local_device": str} | {
    one.name: {"int": int, "bool": bool, "float": float}.get(str(one.type), str)
    for one in fields(KVCacheConfig)
    if one.name not in ("notices", "origins")
}
"""Type of the value of each key."""


def _parsed(key: str, value: object, kind: type) -> Any:
    """Value of a key, also from text with quotes and spaces. Raises KVError for a value of another type."""
    text = value.strip().strip("'\"").strip() if isinstance(value, str) else value
    if kind is str and (text is None or text in ("", "None", "none", "null")):
        return "" if key == "cache_salt" else None
    if kind is bool and str(text).lower() in ("true", "1", "yes", "on", "false", "0", "no", "off"):
        return str(text).lower() in ("true", "1", "yes", "on")
    try:
        if isinstance(text, str | int | float) and kind is not bool and (kind is str or not isinstance(text, bool)):
            return kind(text)
    except ValueError:
        pass
    raise KVError(f"{key} is {value!r}", hint=f"write a value of type {kind.__name__}")


def _read_yaml(path: Path) -> Mapping[str, object]:
    try:
        import yaml
    except ImportError as error:
        raise KVError(f"{path} needs the pyyaml package", hint="pip install 'lmql-lite[local]'") from error
    try:
        values = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise KVError(
            f"{path} is not a configuration file ({reason})", hint="it is YAML: a key and a value a line"
        ) from error
    if values is not None and not isinstance(values, dict):
        raise KVError(f"{path} is not a configuration file", hint="it is YAML: a key and a value a line")
    return {str(key): value for key, value in (values or {}).items()}
