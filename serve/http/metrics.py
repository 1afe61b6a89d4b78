"""Prometheus metrics: what HTTP counts itself, and what the engine counts, read when they are asked for."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from serve.engine import Origin
from serve.http.answer.facts import ORIGIN_NAMES
from serve.http.model import ServedModel

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
CYCLE_SECONDS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One server's; nothing is global."""

    def __init__(self, model: ServedModel):
        registry = CollectorRegistry()
        self._registry = registry
        self.requests = Counter(
            "dspine:requests", "Requests for text that are over.", ["endpoint", "outcome"], registry=registry
        )
        self.responses = Counter("dspine:http_responses", "All answers.", ["path", "status"], registry=registry)
        self.open_requests = Gauge("dspine:http_requests_open", "Requests not answered yet.", registry=registry)
        self.first_token = Histogram(
            "dspine:time_to_first_token_seconds", "Until the first token.", buckets=SECONDS, registry=registry
        )
        self.latency = Histogram(
            "dspine:e2e_request_latency_seconds", "Until the last token.", buckets=SECONDS, registry=registry
        )
        self.request_cycle = Histogram(
            "dspine:request_cycle_seconds",
            "Between two cycles of one answer, as its reader saw them.",
            buckets=CYCLE_SECONDS,
            registry=registry,
        )
        registry.register(OfEngine(model))

    def text(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self._registry)


class OfEngine(Collector):
    """The engine's counters, under the names that vLLM gives such things."""

    def __init__(self, model: ServedModel):
        self._model = model

    def collect(self) -> Iterable[Metric]:
        """Only whether the model is ready, while it is loading."""
        yield GaugeMetricFamily("dspine:ready", "Whether requests are taken.", value=self._model.ready)
        if not self._model.opened:
            return
        parts = self._model.parts
        stats = parts.engine.stats()
        yield GaugeMetricFamily("dspine:num_requests_running", "Requests that have a slot.", value=stats.running)
        yield GaugeMetricFamily("dspine:num_requests_waiting", "Requests in the queue.", value=stats.waiting)
        yield GaugeMetricFamily("dspine:num_slots", "Requests that can run at a time.", value=stats.slots)
        yield CounterMetricFamily("dspine:requests_refused", "Requests that found a full queue.", value=stats.refused)
        yield CounterMetricFamily("dspine:requests_expired", "Requests that waited too long.", value=stats.expired)
        yield CounterMetricFamily("dspine:prompt_tokens", "Prompt tokens read.", value=stats.prompt_tokens)
        yield _labelled(
            "dspine:generation_tokens",
            "Tokens emitted.",
            "origin",
            {ORIGIN_NAMES[origin]: stats.tokens.get(origin, 0) for origin in Origin},
        )
        yield _labelled(
            "dspine:engine_requests",
            "Requests of the engine that are over; one of HTTP may be several.",
            "finish",
            {finish: stats.finished.get(finish, 0) for finish in ("stop", "length", "cancelled", "error")},
        )
        yield GaugeMetricFamily("dspine:kv_cache_pages", "Pages of keys and values.", value=stats.pages)
        yield GaugeMetricFamily("dspine:kv_cache_pages_in_use", "Of these, taken ones.", value=stats.pages_in_use)
        yield GaugeMetricFamily(
            "dspine:kv_cache_usage_perc",
            "Share of pages that is taken, 0 to 1.",
            value=stats.pages_in_use / stats.pages,
        )
        drafts = int(stats.accepted.sum())
        yield CounterMetricFamily("dspine:spec_decode_num_drafts", "Cycles of single requests.", value=drafts)
        yield CounterMetricFamily(
            "dspine:spec_decode_num_draft_tokens", "Proposals verified.", value=drafts * parts.proposals
        )
        yield CounterMetricFamily(
            "dspine:spec_decode_num_accepted_tokens", "Proposals accepted.", value=int(stats.accepted_at.sum())
        )
        yield _labelled(
            "dspine:spec_decode_num_accepted_tokens_per_pos",
            "Proposals accepted, by their place in the block.",
            "position",
            {str(place): int(count) for place, count in enumerate(stats.accepted_at[: parts.proposals])},
        )
        plain = stats.cycles - stats.chunk_cycles
        yield SummaryMetricFamily(
            "dspine:cycle_seconds",
            "Cycles of the whole batch that followed each other directly.",
            count_value=plain,
            sum_value=stats.cycle_seconds,
        )
        yield SummaryMetricFamily(
            "dspine:chunk_cycle_seconds",
            "Cycles of the whole batch after a chunk of a prompt, the chunk included.",
            count_value=stats.chunk_cycles,
            sum_value=stats.chunk_cycle_seconds,
        )
        yield _labelled(
            "dspine:compilations",
            "Programs compiled; while serving, none should be.",
            "phase",
            {"warm_up": stats.warm_up_compilations, "serving": stats.compilations},
        )


def _labelled(name: str, text: str, label: str, values: dict[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family
