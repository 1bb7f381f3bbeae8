package sim

import (
	"sync/atomic"
	"time"
)

// reloadEvery is the least time between two starts of a thread's VM. Envoy adds up to
// half of it, at random.
const reloadEvery = int64(time.Second)

type reloads struct{ success, failure, backoff atomic.Uint64 }

// Reloads counts what requests found in place of a failed VM, by Envoy's names: one made
// anew, one that failed to start, and none because the last start was too short a time ago.
func (h *Host) Reloads() map[string]uint64 {
	return map[string]uint64{
		"vm_reload_success": h.reloads.success.Load(), "vm_reload_failure": h.reloads.failure.Load(), "vm_reload_backoff": h.reloads.backoff.Load(),
	}
}

// reload makes the thread's failed VM anew, for a request, as FAIL_RELOAD does. The
// requests of the failed one stay with it.
func (t *thread) reload() {
	h, old := t.host, t.root
	now := h.elapsed()
	if now-t.loaded < reloadEvery {
		h.reloads.backoff.Add(1)
		return
	}
	t.loaded = now
	v, err := h.instantiate(t.id, old.vm.filter, nil)
	v.thread = t
	var root *scope
	if err == nil {
		root, err = v.start(old.configuration)
	}
	if err != nil {
		h.reloads.failure.Add(1)
		h.log(Error, t.id, "start of filter: "+err.Error())
		v.close()
		return
	}
	h.reloads.success.Add(1)
	t.running = append(t.running, v)
	t.root = root
	old.vm.retire(old)
}
