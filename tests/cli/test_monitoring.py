"""conf/kubernetes/monitoring: each alert fires when it should and not before, by promtool; each figure is one that we tell."""

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni.node.service.metrics import Family, Metrics
from tests.node import ROOT
from tests.tools import needs, run

FOLDER = ROOT / "conf/kubernetes/monitoring"
SPEC: dict[str, Any] = yaml.safe_load((FOLDER / "prometheusrule.yaml").read_text())["spec"]
RULES: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in SPEC["groups"] for rule in group["rules"]}
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())

needs_promtool = needs("promtool", "apt-get install prometheus")

Series = dict[str, str]


def rate(node: str, rail: int, model: str = "15b3:1021", layer: str = "Ethernet") -> str:
    """The series of the rate of a NIC's port."""
    port = f'device="mlx5_{rail}",port="1",model="{model}",link_layer="{layer}",nodename="{node}"'
    return f"railcni_rdma_rate_bytes_per_second{{{port}}}"


# Of each alert: series that let it fire after an hour, and series that do not (values of a minute each, promtool's notation).
CASES: dict[str, tuple[Series, Series]] = {
    "RailcniInstallationUnhealthy": (
        {'railcni_installation_healthy{nodename="n1"}': "1x10 0x60"},
        {'railcni_installation_healthy{nodename="n1"}': "0x55 1x20",
         'railcni_installation_healthy{nodename="n2"}': "1x55 0x20"}),
    "RailcniReleasesPending": (
        {'railcni_pending_releases{nodename="n1"}': "2x70"}, {'railcni_pending_releases{nodename="n1"}': "0x50 2x20"}),
    "RailcniCollectorStale": (
        {'railcni_collector_last_success_timestamp_seconds{nodename="n1"}': "60x70"},
        {'railcni_collector_last_success_timestamp_seconds{nodename="n1"}': "0+60x70"}),
    "RailcniPoolNearlyFull": (
        {'ipam_allocations_in_use{ippool="p",node="n1",nodename="n1"}': "60x70",
         'ipam_allocations_in_use{ippool="p",node="n2",nodename="n1"}': "35x70",
         'ipam_ippool_size{ippool="p",nodename="n1"}': "100x70",
         'ipam_ippool_size{ippool="q",nodename="n1"}': "1000x70"},
        {'ipam_allocations_in_use{ippool="p",node="n1",nodename="n1"}': "60x70",
         'ipam_allocations_in_use{ippool="q",node="n2",nodename="n1"}': "35x70",
         'ipam_ippool_size{ippool="p",nodename="n1"}': "100x70",
         'ipam_ippool_size{ippool="q",nodename="n1"}': "100x70"}),
    "RailcniPoolObjectNearLimit": (
        {'railcni_ippool_object_bytes{ippool="p"}': "900x70", "railcni_ippool_object_limit_bytes": "1000x70"},
        {'railcni_ippool_object_bytes{ippool="p"}': "700x70", "railcni_ippool_object_limit_bytes": "1000x70"}),
    "RailcniConflicts": ({'railcni_api_conflicts_total{resource="ippools",nodename="n1"}': "0+40x70",
                          'railcni_api_conflicts_total{resource="ippools",nodename="n2"}': "0+40x70"},
                         {'railcni_api_conflicts_total{resource="ippools",nodename="n1"}': "0+40x70"}),
    "RailcniDuplicateAddress": (
        {'railcni_addresses_contended_total{nodename="n1"}': "0x30 1x40"},
        {'railcni_addresses_contended_total{nodename="n1"}': "3x70"}),
    "RailcniGidTableNearlyFull": (
        {'railcni_gid_table_entries{device="mlx5_0",port="1",nodename="n1"}': "240x70",
         'railcni_gid_table_size{device="mlx5_0",port="1",nodename="n1"}': "256x70"},
        {'railcni_gid_table_entries{device="mlx5_0",port="1",nodename="n1"}': "100x70",
         'railcni_gid_table_size{device="mlx5_0",port="1",nodename="n1"}': "256x70"}),
    "RailcniRdmaLinkFlaps": (
        {'railcni_rdma_errors_total{device="mlx5_0",port="1",counter="carrier_down_count",nodename="n1"}': "5x30 8x40"},
        {
            'railcni_rdma_errors_total{device="mlx5_0",port="1",counter="link_downed",nodename="n1"}': "5x30 6x40",
            'railcni_rdma_errors_total{device="mlx5_1",port="1",counter="link_downed",nodename="n1"}': "57x70"},
    ),
    "RailcniRdmaPortSlow": ({rate("n1", 0): "50x70", rate("n1", 1): "50x70", rate("n1", 2): "25x70"},
                            {rate("n1", 0): "50x70", rate("n1", 1, model="15b3:1017"): "25x70",
                             rate("n1", 2, layer="InfiniBand"): "25x70", rate("n2", 0): "25x70", rate("n2", 1): "25x70",
                             rate("n2", 2): "50x70"}),
    "RailcniRdmaFirmwareDiffers": (
        {'railcni_rdma_device_info{device="mlx5_0",model="15b3:1021",firmware="28.39.1002",nodename="n1"}': "1x70",
         'railcni_rdma_device_info{device="mlx5_1",model="15b3:1021",firmware="28.38.1002",nodename="n1"}': "1x70"},
        {'railcni_rdma_device_info{device="mlx5_0",model="15b3:1021",firmware="28.39.1002",nodename="n1"}': "1x70",
         'railcni_rdma_device_info{device="mlx5_1",model="15b3:1021",firmware="28.39.1002",nodename="n1"}': "1x70",
         'railcni_rdma_device_info{device="mlx5_2",model="15b3:1017",firmware="16.35.1012",nodename="n1"}': "1x70",
         'railcni_rdma_device_info{device="mlx5_0",model="15b3:1021",firmware="28.38.1002",nodename="n2"}': "1x70"}),
    "RailcniRdmaErrors": (
        {'railcni_rdma_errors_total{device="mlx5_0",port="1",counter="out_of_sequence",nodename="n1"}': "0+120x70"},
        {
            'railcni_rdma_errors_total{device="mlx5_0",port="1",counter="out_of_sequence",nodename="n1"}': "0+30x70",
            'railcni_rdma_errors_total{device="mlx5_1",port="1",counter="symbol_error",nodename="n1"}': "0x30 9000x40",
            'railcni_rdma_errors_total{device="mlx5_2",port="1",counter="symbol_error",nodename="n1"}': "0x55 9000x20"},
    ),
}  # fmt: skip


def told() -> set[str]:
    """The names of all figures that agent and device plugin tell."""
    families = [value for value in vars(Metrics()).values() if isinstance(value, Family)]
    buckets = {f"{family.name}_bucket" for family in families if family.kind == "histogram"}
    source = (ROOT / "cni/resources/device_plugin/plugin.py").read_text()
    own = set(re.findall(r'(?:Family|Counter)\("(railcni_\w+)"', source))
    return {family.name for family in families} | buckets | own


def asked(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:railcni|ipam)_\w+", expression))


def test_every_alert_has_its_cases_and_a_section_in_the_documentation() -> None:
    sections = re.findall(r"^## (Railcni\w+)$", (ROOT / "docs/alerts.md").read_text(), re.M)
    assert set(CASES) == set(RULES) == set(sections)


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_asks_for_figures_that_are_told_and_names_its_section(alert: str) -> None:
    assert asked(RULES[alert]["expr"]) <= told()
    assert RULES[alert]["annotations"]["runbook"] == f"docs/alerts.md#{alert.lower()}"


def test_the_dashboard_asks_for_figures_that_are_told_and_its_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            assert asked(target["expr"]) and asked(target["expr"]) <= told()
        x, y, width, height = (panel["gridPos"][key] for key in "xywh")
        cells = set(product(range(x, x + width), range(y, y + height)))
        assert x + width <= 24 and not taken & cells
        taken |= cells


def unit_test(tmp_path: Path, *scenes: Series) -> tuple[int, str]:
    """Promtool's answer to whether in each scene no alert fires after an hour."""
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(SPEC))
    expected = [{"alertname": alert, "eval_time": "1h", "exp_alerts": []} for alert in RULES]
    given = [[{"series": name, "values": values} for name, values in series.items()] for series in scenes]
    tests = [{"interval": "1m", "input_series": series, "alert_rule_test": expected} for series in given]
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(document))
    done = run("promtool", "test", "rules", str(tmp_path / "test.yaml"))
    return done.returncode, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_when_it_should_and_no_other_with_it(tmp_path: Path, alert: str) -> None:
    _, said = unit_test(tmp_path, CASES[alert][0])
    assert set(re.findall(r"alertname: ?(\w+)", said)) == {alert}, said
    summary = re.search(r'summary="(.*?)"', said)
    assert summary and "<no value>" not in summary[1], said


@needs_promtool
def test_no_alert_fires_before_it_should(tmp_path: Path) -> None:
    code, said = unit_test(tmp_path, *(quiet for _, quiet in CASES.values()))
    assert code == 0, said
