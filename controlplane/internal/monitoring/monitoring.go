// Package monitoring has a dashboard of Grafana and rules of Prometheus for the metrics
// of Envoys with the filter, of serve and of quota. A real Prometheus asks every query
// in e2e.
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

// The shapes of the dashboard are Grafana's.
type (
	dashboard struct {
		UID           string         `json:"uid"`
		Title         string         `json:"title"`
		Tags          []string       `json:"tags"`
		SchemaVersion int            `json:"schemaVersion"`
		Refresh       string         `json:"refresh"`
		Time          span           `json:"time"`
		Annotations   map[string]any `json:"annotations"`
		Templating    map[string]any `json:"templating"`
		Panels        []panel        `json:"panels"`
	}
	span struct {
		From string `json:"from"`
		To   string `json:"to"`
	}
	variable struct {
		Name       string  `json:"name"`
		Type       string  `json:"type"`
		Query      string  `json:"query"`
		Datasource *source `json:"datasource,omitempty"`
		Refresh    int     `json:"refresh"`
		IncludeAll bool    `json:"includeAll"`
		Multi      bool    `json:"multi"`
		AllValue   string  `json:"allValue,omitempty"`
	}
	source struct {
		Type string `json:"type"`
		UID  string `json:"uid"`
	}
	panel struct {
		ID          int      `json:"id"`
		Type        string   `json:"type"`
		Title       string   `json:"title"`
		GridPos     grid     `json:"gridPos"`
		Datasource  *source  `json:"datasource,omitempty"`
		FieldConfig *fields  `json:"fieldConfig,omitempty"`
		Targets     []target `json:"targets,omitempty"`
	}
	grid struct {
		X int `json:"x"`
		Y int `json:"y"`
		W int `json:"w"`
		H int `json:"h"`
	}
	fields struct {
		Defaults  defaults `json:"defaults"`
		Overrides []any    `json:"overrides"`
	}
	defaults struct {
		Unit string `json:"unit"`
		Min  int    `json:"min"`
	}
	target struct {
		RefID        string  `json:"refId"`
		Datasource   *source `json:"datasource"`
		Expr         string  `json:"expr"`
		LegendFormat string  `json:"legendFormat"`
	}
)

var prometheus = &source{"prometheus", "${datasource}"}

// Dashboard returns the dashboard as JSON. Grafana asks for the data source on import.
func Dashboard() ([]byte, error) {
	d := dashboard{
		UID: "sluice", Title: "sluice", Tags: []string{"sluice"}, SchemaVersion: 39, Refresh: "30s", Time: span{"now-1h", "now"},
		Annotations: map[string]any{"list": []any{}},
		Templating: map[string]any{"list": []variable{
			{Name: "datasource", Type: "datasource", Query: "prometheus", Refresh: 1},
			{Name: "rule", Type: "query", Query: "label_values(rate_limit_memory_usage_bytes, rule)", Datasource: prometheus,
				Refresh: 2, IncludeAll: true, Multi: true, AllValue: ".*"},
		}},
	}
	y := 0
	for _, r := range rows {
		d.add(panel{Type: "row", Title: r.title, GridPos: grid{0, y, width, 1}})
		y++
		for i, c := range r.charts {
			d.add(c.panel(grid{i % 3 * chartWidth, y + i/3*chartHeight, chartWidth, chartHeight}))
		}
		y += (len(r.charts) + 2) / 3 * chartHeight
	}
	text, err := json.MarshalIndent(d, "", "  ")
	return append(text, '\n'), err
}

// Grafana's grid is 24 wide.
const (
	width       = 24
	chartWidth  = width / 3
	chartHeight = 8
)

func (d *dashboard) add(p panel) {
	p.ID = len(d.Panels) + 1
	d.Panels = append(d.Panels, p)
}

func (c chart) panel(at grid) panel {
	p := panel{Type: "timeseries", Title: c.title, GridPos: at, Datasource: prometheus,
		FieldConfig: &fields{Defaults: defaults{Unit: c.unit}, Overrides: []any{}}}
	for i, q := range c.queries {
		p.Targets = append(p.Targets, target{fmt.Sprintf("%c", 'A'+i), prometheus, q.expr, q.legend})
	}
	return p
}
