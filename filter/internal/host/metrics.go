package host

import (
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
)

// defined and gauges are the metrics that this VM has defined, by name. Each
// definition takes memory in the proxy: a metric is defined when it first has
// something to say, and the configurations that follow go on with it.
var (
	defined = map[string]proxywasm.MetricCounter{}
	gauges  = map[string]proxywasm.MetricGauge{}
)

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
		m.flushed[i].raise(count, func() string { return ruleMetric(rule, name) })
		i++
	})
	m.panic.raise(m.panics, func() string { return "rate_limit_panics_total" })
	e.EachMemory(func(rule string, bytes uint64) {
		name := memoryMetric(rule)
		gauge, have := gauges[name]
		if !have {
			gauge = proxywasm.DefineGaugeMetric(name)
			gauges[name] = gauge
		}
		setGauge(gauge, bytes)
	})
}

func ruleMetric(rule, name string) string {
	return "rule=.=" + rule + ";.;rate_limit_" + name + "_total"
}

func memoryMetric(rule string) string { return "rule=.=" + rule + ";.;rate_limit_memory_usage_bytes" }

// forget sets the gauges of an ended configuration's rules to 0 where the
// configurations that go on in this VM do not report them. Without any that goes
// on the VM ends too, and another one knows better.
func (p *plugin) forget() {
	if len(running) == 0 {
		return
	}
	p.engine.EachRule(func(rule string) {
		for _, other := range running {
			if other.engine.ReportsMemory(rule) {
				return
			}
		}
		if gauge, have := gauges[memoryMetric(rule)]; have {
			setGauge(gauge, 0)
		}
	})
}

// setGauge sets a gauge of the process: the last VM to do so is right.
func setGauge(gauge proxywasm.MetricGauge, value uint64) {
	if status := importRecordMetric(uint32(gauge), value); status != statusOK {
		panic("the proxy does not know a metric that it has defined")
	}
}

// Counted asks the proxy, which has one counter for all workers. It defines
// counters that have counted nothing yet: few, and only once somebody asks.
func (p *proxy) Counted(rule, metric string) uint64 { return define(ruleMetric(rule, metric)).Value() }

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
