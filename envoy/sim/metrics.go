package sim

import (
	"sync"
	"sync/atomic"
)

// metrics are the counters and gauges of a process by name. VMs that define
// the same name get the same one, each under ids of its own.
type metrics struct {
	mu       sync.Mutex
	counters map[string]*atomic.Uint64
	gauges   map[string]*atomic.Uint64
}

const (
	metricCounter = 0
	metricGauge   = 1
)

// metricIDs are the ids a VM was given: type in the two low bits, and a count
// of the definitions of that type above. Defining twice allocates twice.
type metricIDs struct {
	counters []*atomic.Uint64
	gauges   []*atomic.Uint64
}

func (m *metrics) named(byName *map[string]*atomic.Uint64, name string) *atomic.Uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if *byName == nil {
		*byName = map[string]*atomic.Uint64{}
	}
	stat := (*byName)[name]
	if stat == nil {
		stat = new(atomic.Uint64)
		(*byName)[name] = stat
	}
	return stat
}

func (m *metrics) snapshot() map[string]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make(map[string]uint64, len(m.counters)+len(m.gauges))
	for _, byName := range []map[string]*atomic.Uint64{m.counters, m.gauges} {
		for name, stat := range byName {
			all[name] = stat.Load()
		}
	}
	return all
}

// lookup returns the stat of a counter or gauge id.
func (v *vm) lookup(id uint32) *atomic.Uint64 {
	var stats []*atomic.Uint64
	switch id & 3 {
	case metricCounter:
		stats = v.metrics.counters
	case metricGauge:
		stats = v.metrics.gauges
	}
	if i := int(id >> 2); i >= 1 && i <= len(stats) {
		return stats[i-1]
	}
	return nil
}

func (v *vm) defineMetric(s []uint64) status {
	kind := uint32(s[0])
	name, ok := v.read(s[1], s[2])
	if !ok {
		return invalidMemory
	}
	n := 0
	all := &v.host.metrics
	switch kind {
	case metricCounter:
		v.metrics.counters = append(v.metrics.counters, all.named(&all.counters, string(name)))
		n = len(v.metrics.counters)
	case metricGauge:
		v.metrics.gauges = append(v.metrics.gauges, all.named(&all.gauges, string(name)))
		n = len(v.metrics.gauges)
	default: // a histogram, which no filter of ours has
		return badArgument
	}
	return v.writeU32(s[3], uint32(n)<<2|kind)
}

func (v *vm) incrementMetric(s []uint64) status {
	id, offset := uint32(s[0]), int64(s[1])
	if kind := id & 3; kind > metricGauge {
		return badArgument
	}
	stat := v.lookup(id)
	switch {
	case stat == nil:
		return notFound
	case id&3 == metricCounter && offset <= 0:
		return badArgument
	}
	stat.Add(uint64(offset))
	return statusOK
}

func (v *vm) recordMetric(s []uint64) status {
	id, value := uint32(s[0]), s[1]
	stat := v.lookup(id)
	if stat == nil {
		return notFound
	}
	if id&3 == metricCounter {
		stat.Add(value)
	} else {
		stat.Store(value)
	}
	return statusOK
}

func (v *vm) getMetric(s []uint64) status {
	id := uint32(s[0])
	if kind := id & 3; kind > metricGauge {
		return badArgument
	}
	stat := v.lookup(id)
	if stat == nil {
		return notFound
	}
	return v.writeU64(s[1], stat.Load())
}
