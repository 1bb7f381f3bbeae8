package host

import (
	"unsafe"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

const (
	kindCounter uint32 = 0
	kindGauge   uint32 = 1
)

// defined are the numbers of the metrics that this VM has defined, by name. Each definition
// takes memory in the proxy, so a metric is defined when it first is not 0, and
// later configurations use it further.
var defined = map[string]uint32{}

func define(kind uint32, name string) uint32 {
	number, have := defined[name]
	if !have {
		id := new(uint32)
		must(importDefineMetric(kind, unsafe.Pointer(unsafe.StringData(name)), uint32(len(name)), unsafe.Pointer(id)))
		number, defined[name] = *id, *id
	}
	return number
}

func must(status uint32) {
	if status != statusOK {
		panic("the proxy does not know a metric that it has defined")
	}
}

// counter is one of the proxy's counters. The label in front of its name has the form that
// Istio's extraStatTags recognize.
type counter struct {
	number uint32 // the proxy's, if count is above 0
	count  uint64
}

// flushMetrics publishes the engine's metrics to the proxy.
func (p *plugin) flushMetrics() {
	i := 0
	p.engine.EachMetric(func(s engine.Series, count uint64) {
		if i == len(p.counters) {
			more := make([]counter, max(64, 2*i)) // append's memory would be searched for pointers
			copy(more, p.counters)
			p.counters = more
		}
		c := &p.counters[i]
		i++
		if count == c.count {
			return
		}
		if c.count == 0 {
			c.number = define(kindCounter, counterName(&s))
		}
		must(importIncrementMetric(c.number, int64(count-c.count)))
		c.count = count
	})
	p.gaugeHolding(func(h state.StreamTotal) state.StreamTotal { return h })
	p.engine.EachMemory(true, func(m engine.Memory) {
		eachGauge(&m, func(name string, value uint64) {
			if _, have := defined[name]; have || m.Bytes > 0 {
				must(importRecordMetric(define(kindGauge, name), value))
			}
		})
	})
}

// shownHolding is what the gauges of a rule show, once its streams have held something.
type shownHolding struct {
	all   state.StreamTotal
	begun bool
}

// gaugeHolding shows what the streams of all VMs hold. own is what it takes for this VM's streams,
// from what they hold.
func (p *plugin) gaugeHolding(own func(h state.StreamTotal) state.StreamTotal) {
	i := 0
	p.engine.EachHolding(func(s engine.Series, h state.StreamTotal) {
		if i == len(p.holding) {
			p.holding = append(p.holding, shownHolding{})
		}
		shown, mine := &p.holding[i], own(h)
		i++
		if mine == (state.StreamTotal{}) && !shown.begun {
			return
		}
		shown.begun = true
		all, ok := p.engine.ShareHolding(&s, p.self, mine)
		if !ok || all == shown.all {
			return
		}
		labels := labels(&s)
		must(importRecordMetric(define(kindGauge, labels+"rate_limit_held_units"), uint64(all.Units)))
		must(importRecordMetric(define(kindGauge, labels+"rate_limit_held_streams"), uint64(all.Streams)))
		shown.all = all
	})
}

func counterName(s *engine.Series) string {
	of := ""
	if s.Override != "" {
		of = "override_"
	}
	return labels(s) + "rate_limit_" + of + s.Metric + "_total"
}

// labels are in front of a metric's name, unless it is about no rule. A policy without a
// domain has no label of that name. StatsTags in envoy/bootstrap.go reads what is written here.
func labels(s *engine.Series) string {
	if s.Rule == "" {
		return ""
	}
	text := "rule=.=" + s.Rule + ";.;"
	if s.Domain != policy.DefaultDomain {
		text = "domain=.=" + s.Domain + ";.;" + text
	}
	if s.Override != "" {
		text += "override=.=" + s.Override + ";.;"
	}
	return text
}

// eachGauge calls f for what is known of a rule's table. The gauges are of the process: the
// VM that sets one last is right.
func eachGauge(m *engine.Memory, f func(name string, value uint64)) {
	of := labels(&m.Series)
	f(of+"rate_limit_memory_usage_bytes", m.Bytes)
	f(of+"rate_limit_live_keys", m.Keys)
	f(of+"rate_limit_capacity", m.Capacity)
}

// forgetGauges sets the gauges of an ended configuration's rules to 0, unless another
// configuration in this VM reports them. Without another configuration the VM ends
// as well, and other VMs set the gauges.
func (p *plugin) forgetGauges() {
	reported := map[string]bool{}
	others := false
	for _, other := range plugins {
		if other.engine != nil {
			others = true
			other.engine.EachMemory(false, func(m engine.Memory) { reported[labels(&m.Series)] = true })
		}
	}
	if !others {
		return
	}
	p.engine.EachMemory(false, func(m engine.Memory) {
		if reported[labels(&m.Series)] {
			return
		}
		eachGauge(&m, func(name string, _ uint64) {
			if gauge, have := defined[name]; have {
				must(importRecordMetric(gauge, 0))
			}
		})
	})
}

// Counted reads the proxy's counter, which is one for all workers. It defines
// counters that have counted nothing yet: few, and only on request.
func (p *proxy) Counted(domain, rule, metric string) uint64 {
	return valueOf(define(kindCounter, counterName(&engine.Series{Domain: domain, Rule: rule, Metric: metric})))
}

func valueOf(metric uint32) uint64 {
	value := new(uint64)
	must(importGetMetric(metric, unsafe.Pointer(value)))
	return *value
}
