"""JSON of a described dashboard for Grafana, with ids, and three panels on a line without overlap.

Grafana 10 and later (schema 39); https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT, COLUMNS = 8, 7, 3
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """Curves over time.

    Args:
        title: of the panel.
        about: explanation, shown at the title.
        unit: Grafana's name of the unit.
        curves: an expression for each legend; `{{label}}` in a legend is that label's value.
        floor: the least value of the axis; None to follow the curves.
    """

    title: str
    about: str
    unit: str
    curves: Mapping[str, str]
    floor: float | None = 0.0


@dataclass(frozen=True)
class Row:
    """A heading and the panels under it."""

    title: str
    panels: Sequence[Panel]


def dashboard(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the dashboard with the variables `datasource` and `run`, and a mark at each of our alerts."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        position = {"h": 1, "w": WIDTH * COLUMNS, "x": 0, "y": top}
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": position,
                "panels": [],
            }
        )
        top += 1
        for number, panel in enumerate(row.panels):
            line, column = divmod(number, COLUMNS)
            position = {"h": HEIGHT, "w": WIDTH, "x": WIDTH * column, "y": top + HEIGHT * line}
            panels.append({"id": len(panels) + 1, "gridPos": position, **_series(panel)})
        top += HEIGHT * -(-len(row.panels) // COLUMNS)
    return {
        "uid": "raytriever",
        "title": "raytriever",
        "tags": ["raytriever", "ray"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,  # the cross-hair is shared
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "templating": {"list": [_DATASOURCE, _RUN]},
        "annotations": {"list": [_ALERTS]},
        "panels": panels,
    }


def _series(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "custom": {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 0, "showPoints": "auto", "spanNulls": False},
    }
    if panel.floor is not None:
        defaults["min"] = panel.floor
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": SOURCE,
                "expr": curve,
                "legendFormat": legend,
                "range": True,
            }
            for number, (legend, curve) in enumerate(panel.curves.items())
        ],
    }


_DATASOURCE = {
    "name": "datasource",
    "label": "Prometheus",
    "type": "datasource",
    "query": "prometheus",
    "refresh": 1,
}
_RUN = {
    "name": "run",
    "label": "Run",
    "type": "query",
    "datasource": SOURCE,
    "query": {"query": 'label_values({__name__=~"ray_raytriever_.+"}, run)', "refId": "run"},
    "refresh": 2,  # with every change of the range of time
    "sort": 1,
    "multi": True,
    "includeAll": True,
    "allValue": ".*",
    "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
}
_ALERTS = {
    "name": "Alerts",
    "datasource": SOURCE,
    "enable": True,
    "expr": 'ALERTS{alertstate="firing", alertname=~"Raytriever.+"}',
    "titleFormat": "{{alertname}}",
    "textFormat": "{{run}}{{instance}}",
    "iconColor": "red",
}
