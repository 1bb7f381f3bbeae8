package host

import (
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
)

// defined are the metrics that this VM has defined, by name. Each definition
// takes memory in the proxy: a metric is defined when it first counts
// something, and the configurations that follow go on with it.
var defined = map[string]proxywasm.MetricCounter{}

// metrics brings what the engine has counted to the proxy. A label stands in
// front of the name in the way that Istio's extraStatTags take it for one.
type metrics struct {
	flushed []counter // in the order of engine.EachMetric
	panics  uint64
	panic   counter
}

type counter struct {
	metric proxywasm.MetricCounter // valid where count is above 0
	count  uint64
}

func (m *metrics) flush(e *engine.Engine) {
	i := 0
	e.EachMetric(func(rule, name string, count uint64) {
		if i == len(m.flushed) {
			m.flushed = append(m.flushed, counter{})
		}
		m.flushed[i].raise(count, func() string { return "rule=.=" + rule + ";.;rate_limit_" + name + "_total" })
		i++
	})
	m.panic.raise(m.panics, func() string { return "rate_limit_panics_total" })
}

// raise brings the proxy's counter to count.
func (c *counter) raise(count uint64, name func() string) {
	if count == c.count {
		return
	}
	if c.count == 0 {
		c.metric = define(name())
	}
	c.metric.Increment(count - c.count)
	c.count = count
}

func define(name string) proxywasm.MetricCounter {
	metric, have := defined[name]
	if !have {
		metric = proxywasm.DefineCounterMetric(name)
		defined[name] = metric
	}
	return metric
}
