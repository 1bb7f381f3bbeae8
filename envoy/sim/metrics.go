package sim

import (
	"sync"
	"sync/atomic"
)

// The kinds of metrics. A histogram, which no filter of ours has, is none.
const (
	metricCounter = 0
	metricGauge   = 1
	metricKinds   = 2
)

// metrics are the counters and gauges of a process by name. VMs that define
// the same name get the same one, each under ids of its own.
type metrics struct {
	mu  sync.Mutex
	all [metricKinds]map[string]*atomic.Uint64
}

// metricIDs are the ids a VM was given: type in the two low bits, and a count
// of the definitions of that type above. Defining twice allocates twice.
type metricIDs [metricKinds][]*atomic.Uint64

func (m *metrics) named(kind uint32, name string) *atomic.Uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all[kind] == nil {
		m.all[kind] = map[string]*atomic.Uint64{}
	}
	stat := m.all[kind][name]
	if stat == nil {
		stat = new(atomic.Uint64)
		m.all[kind][name] = stat
	}
	return stat
}

func (m *metrics) snapshot() map[string]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	values := map[string]uint64{}
	for _, byName := range m.all {
		for name, stat := range byName {
			values[name] = stat.Load()
		}
	}
	return values
}

// metric returns the stat of an id.
func (v *vm) metric(id uint64) (stat *atomic.Uint64, kind uint32, found status) {
	kind = uint32(id) & 3
	if kind >= metricKinds {
		return nil, kind, badArgument
	}
	stats := v.metrics[kind]
	if i := int(uint32(id) >> 2); i >= 1 && i <= len(stats) {
		return stats[i-1], kind, statusOK
	}
	return nil, kind, notFound
}

func (v *vm) defineMetric(a args) status {
	kind := uint32(a.n[0])
	if kind >= metricKinds {
		return badArgument
	}
	v.metrics[kind] = append(v.metrics[kind], v.host.metrics.named(kind, string(a.b[0])))
	return v.writeU32(a.n[1], uint32(len(v.metrics[kind]))<<2|kind)
}

func (v *vm) incrementMetric(a args) status {
	stat, kind, found := v.metric(a.n[0])
	switch {
	case found != statusOK:
		return found
	case kind == metricCounter && int64(a.n[1]) <= 0:
		return badArgument
	}
	stat.Add(a.n[1])
	return statusOK
}

func (v *vm) recordMetric(a args) status {
	stat, kind, found := v.metric(a.n[0])
	switch {
	case found != statusOK:
		return notFound
	case kind == metricCounter:
		stat.Add(a.n[1])
	default:
		stat.Store(a.n[1])
	}
	return statusOK
}

func (v *vm) getMetric(a args) status {
	stat, _, found := v.metric(a.n[0])
	if found != statusOK {
		return found
	}
	return v.writeU64(a.n[1], stat.Load())
}
