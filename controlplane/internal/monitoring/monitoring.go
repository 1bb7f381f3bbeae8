// Package monitoring has a dashboard for Grafana and alert rules for Prometheus. They show the
// metrics of Envoys with the filter, of serve and of quota.
//
// Its invariant: each metric in them is one that docs/metrics.md explains. A real Prometheus
// evaluates every query in e2e.
package monitoring

import (
	_ "embed"
	"encoding/json"
	"fmt"
)

// Rules are the alert rules, as a file of Prometheus.
//
//go:embed rules.yaml
var Rules []byte

// object is one of Grafana's.
type object = map[string]any

var prometheus = object{"type": "prometheus", "uid": "${datasource}"}

// Dashboard returns the dashboard as JSON. Grafana asks for the data source on import.
func Dashboard() ([]byte, error) {
	var panels []object
	add := func(x, y, w, h int, panel object) {
		panel["id"] = len(panels) + 1
		panel["gridPos"] = object{"x": x, "y": y, "w": w, "h": h}
		panels = append(panels, panel)
	}
	y := 0
	for _, r := range rows {
		add(0, y, width, 1, object{"type": "row", "title": r.title})
		y++
		for i, c := range r.charts {
			add(i%3*chartWidth, y+i/3*chartHeight, chartWidth, chartHeight, c.panel())
		}
		y += (len(r.charts) + 2) / 3 * chartHeight
	}
	text, err := json.MarshalIndent(object{
		"uid": "sluice", "title": "sluice", "tags": []string{"sluice"}, "schemaVersion": 39, "refresh": "30s",
		"time": object{"from": "now-1h", "to": "now"}, "annotations": object{"list": []any{}}, "panels": panels,
		"templating": object{"list": []object{
			{
				"name": "datasource", "type": "datasource", "query": "prometheus",
				"refresh": 1, "includeAll": false, "multi": false,
			},
			{
				"name": "rule", "type": "query", "query": "label_values(rate_limit_memory_usage_bytes, rule)",
				"datasource": prometheus, "refresh": 2, "includeAll": true, "multi": true, "allValue": ".*",
			},
		}},
	}, "", "  ")
	return append(text, '\n'), err
}

// Grafana's grid is 24 wide.
const (
	width       = 24
	chartWidth  = width / 3
	chartHeight = 8
)

func (c chart) panel() object {
	var targets []object
	for i, q := range c.queries {
		targets = append(targets, object{
			"refId": fmt.Sprintf("%c", 'A'+i), "datasource": prometheus, "expr": q.expr, "legendFormat": q.legend,
		})
	}
	return object{
		"type": "timeseries", "title": c.title, "datasource": prometheus, "targets": targets,
		"fieldConfig": object{"defaults": object{"unit": c.unit, "min": 0}, "overrides": []any{}},
	}
}
