package proxy

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/sluice-ratelimit/sluice/envoy"
)

// counts are the proxy's own metrics.
type counts struct {
	requests       atomic.Uint64
	refused        atomic.Uint64
	answered       atomic.Uint64
	upstreamErrors atomic.Uint64
	filterFailures atomic.Uint64
}

// Admin answers /healthz, with 503 until a policy is in force, and /stats/prometheus, with
// the filter's metrics by the names and labels that Envoy gives them.
func (p *Proxy) Admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-p.ready:
			fmt.Fprintln(w, "ok")
		default:
			http.Error(w, "no policy yet", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /stats/prometheus", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(p.prometheus()) // the caller has disconnected if this fails
	})
	return mux
}

// prometheus returns all metrics in the text format, each family's samples together.
func (p *Proxy) prometheus() []byte {
	samples := p.samples()
	var out bytes.Buffer
	last := ""
	for _, name := range slices.Sorted(maps.Keys(samples)) {
		family, _, _ := strings.Cut(name, "{")
		if family != last {
			last = family
			fmt.Fprintf(&out, "# TYPE %s %s\n", family, familyType(family))
		}
		fmt.Fprintf(&out, "%s %d\n", name, samples[name])
	}
	return out.Bytes()
}

func (p *Proxy) samples() map[string]uint64 {
	samples := map[string]uint64{
		"sluice_proxy_requests_total":        p.counts.requests.Load(),
		"sluice_proxy_refused_total":         p.counts.refused.Load(),
		"sluice_proxy_local_replies_total":   p.counts.answered.Load(),
		"sluice_proxy_upstream_errors_total": p.counts.upstreamErrors.Load(),
		"sluice_proxy_filter_failures_total": p.counts.filterFailures.Load(),
		"sluice_proxy_shared_data_bytes":     uint64(p.host.Shared().Bytes()),
	}
	for name, value := range p.host.Metrics() {
		samples[sample(name)] = value
	}
	for name, value := range p.host.Reloads() {
		samples["envoy_wasm_"+envoy.ResourceName+"_"+name] = value
	}
	return samples
}

func familyType(family string) string {
	if strings.HasSuffix(family, "_total") || strings.Contains(family, "_vm_reload_") {
		return "counter"
	}
	return "gauge"
}

// sample makes of the filter's name "rule=.=per-user;.;rate_limit_allowed_total" the metric
// rate_limit_allowed_total with the label rule, as the stats_tags of a rendered bootstrap do.
// The other labels are domain and override. labels in filter/internal/host/metrics.go writes
// such names.
func sample(name string) string {
	m := statName.FindStringSubmatch(name)
	if m == nil {
		return name
	}
	var labels []string
	for i, label := range statName.SubexpNames() {
		if label != "" && m[i] != "" {
			labels = append(labels, label+`="`+escaper.Replace(m[i])+`"`)
		}
	}
	return m[len(m)-1] + "{" + strings.Join(labels, ",") + "}"
}

var (
	statName = regexp.MustCompile(`^(?:domain=\.=(?P<domain>.*?);\.;)?rule=\.=(?P<rule>.*?);\.;` +
		`(?:override=\.=(?P<override>.*);\.;)?(\w+)$`)
	escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
)
