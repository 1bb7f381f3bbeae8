package main

import (
	"bytes"
	"fmt"
	"text/template"
)

// site is what one Envoy is measured with: two listeners that differ in their
// filters alone.
type site struct {
	Base, Test string // JSON objects of HTTP filters, each followed by a comma; "" = none
	Direct     bool   // Envoy answers itself what the filters let through
	Balanced   bool   // spread connections evenly over the workers
	Upstream   int    // port
	Clusters   string // more of them, JSON objects, each followed by a comma
	Route      string // more fields of the route, JSON, preceded by a comma
}

// The statistics are flushed once in a run at most: that work would fall on one
// turn or another.
var siteTemplate = template.Must(template.New("site").Parse(`
{{- define "listener" }}
  - name: {{ .Name }}
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
{{- if .Site.Balanced }}
    connection_balance_config: {exact_balance: {}}
{{- end }}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: {{ .Name }}
          use_remote_address: true
          normalize_path: true
          merge_slashes: true
          path_with_escaped_slashes_action: UNESCAPE_AND_REDIRECT
          route_config:
            virtual_hosts:
            - name: upstream
              domains: ["*"]
              routes:
{{- if .Site.Direct }}
              - {match: {prefix: /}, direct_response: {status: 200, body: {inline_string: "hello\n"}} }
{{- else }}
              - {match: {prefix: /}, route: {cluster: upstream {{ .Site.Route }} } }
{{- end }}
          http_filters: [
            {{ .Filters }}
            {name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
{{- end -}}
node: {id: bench, cluster: bench}
admin:
  address: {socket_address: {address: 127.0.0.1, port_value: 0}}
stats_flush_interval: 299s
static_resources:
  listeners:
{{- template "listener" .Listener "base" .Base }}
{{- template "listener" .Listener "test" .Test }}
  clusters: [
    {{ .Clusters }}
    {name: upstream, type: STATIC, load_assignment: {cluster_name: upstream, endpoints: [{lb_endpoints: [
      {endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: {{ .Upstream }} } } } }]}]}}]
`))

// Listener describes one listener to the template.
func (s site) Listener(name, filters string) any {
	return struct {
		Name, Filters string
		Site          site
	}{name, filters, s}
}

func (s site) bootstrap() ([]byte, error) {
	var out bytes.Buffer
	if err := siteTemplate.Execute(&out, s); err != nil {
		return nil, fmt.Errorf("write bootstrap: %w", err)
	}
	return out.Bytes(), nil
}
