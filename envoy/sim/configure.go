package sim

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"sync/atomic"
	"time"
)

// Refused is the error of a configuration that the filter refused. Envoy would
// answer the xDS update with a NACK, without the reason.
type Refused struct {
	Cause error
	Log   []string // what the filter logged, info and above
}

// Error gives the cause and the first lines of the log, where the reason is.
func (r *Refused) Error() string {
	const maxLines = 5
	text := "configuration refused: " + r.Cause.Error()
	for i, line := range r.Log {
		if i == maxLines {
			return text + "; …"
		}
		text += "; " + line
	}
	return text
}

func (r *Refused) Unwrap() error { return r.Cause }

// Configure gives all threads a new plugin configuration, as an xDS update does. A trial takes
// it first; if the filter refuses it there, nothing changes and the error is a *Refused.
// Requests under way end under the old configuration. A configuration equal to the running one
// changes nothing, but a thread without a working VM starts a new one.
func (h *Host) Configure(configuration []byte) error {
	h.updates.Lock()
	defer h.updates.Unlock()
	return h.update(h.filter, configuration)
}

// ConfigureWorker gives one worker another configuration of the running filter, without a
// trial: as when an update has come to this thread and not yet to the others. The next
// Configure makes all threads alike again.
func (h *Host) ConfigureWorker(worker int, configuration []byte) error {
	t, err := h.worker(worker)
	if err != nil {
		return err
	}
	h.updates.Lock()
	defer h.updates.Unlock()
	switch {
	case h.closed:
		return errClosed
	case h.configured == nil:
		return errors.New("configure worker: nothing is configured")
	}
	return h.apply(t, h.filter, append([]byte{}, configuration...))
}

// Replace gives all threads a new filter, in new VMs. The shared data stays.
// With the bytes of the running filter it is Configure.
func (h *Host) Replace(wasm []byte, configuration []byte) error {
	h.updates.Lock()
	defer h.updates.Unlock()
	if sha256.Sum256(wasm) == h.filter.sum {
		return h.update(h.filter, configuration)
	}
	f, err := h.compiler.compile(wasm)
	if err != nil {
		return err
	}
	return h.update(f, configuration)
}

var errClosed = errors.New("the host is closed")

func (h *Host) update(f *filter, configuration []byte) error {
	if h.closed {
		return errClosed
	}
	configuration = append([]byte{}, configuration...)
	same := f == h.filter && h.configured != nil && bytes.Equal(configuration, h.configured)
	if !same {
		if err := h.try(f, configuration); err != nil {
			return err
		}
	}
	h.filter, h.configured = f, configuration
	for _, t := range h.threads {
		// The update is accepted: a thread that fails now has logged that, and answers 503.
		_ = h.apply(t, f, configuration)
	}
	return nil
}

// try starts a trial: a VM that takes a configuration and is thrown away.
func (h *Host) try(f *filter, configuration []byte) error {
	var heard []string
	v, err := h.instantiate(Trial, f, &heard)
	defer v.close()
	if err == nil {
		_, err = v.start(configuration)
	}
	if err != nil {
		return &Refused{err, heard}
	}
	return nil
}

// start makes a context for a configuration and has the guest take it.
func (v *vm) start(configuration []byte) (*scope, error) {
	root := v.newRoot(configuration)
	root.configuring = true
	defer func() { root.configuring = false }()
	v.enter(root, callContextCreate, uint64(root.id), 0)
	for _, step := range []struct{ callback, size int }{
		{callVMStart, len(v.host.o.VMConfiguration)},
		{callConfigure, len(configuration)},
	} {
		if v.on[step.callback] != nil && v.enter(root, step.callback, uint64(root.id), uint64(step.size)) == 0 {
			return root, v.because(step.callback)
		}
	}
	return root, v.failed
}

func (v *vm) because(callback int) error {
	if v.failed != nil {
		return v.failed
	}
	return errors.New(callbackNames[callback] + " returned false")
}

// apply gives one thread a configuration, in its VM if that runs the same
// filter, else in a new one.
func (h *Host) apply(t *thread, f *filter, configuration []byte) error {
	t.Lock()
	defer t.Unlock()
	t.started = true
	old := t.root
	usable := old != nil && old.vm.failed == nil && old.vm.filter == f
	if usable && bytes.Equal(old.configuration, configuration) {
		return nil
	}
	var v *vm
	var err error
	if usable {
		v = old.vm
	} else {
		v, err = h.instantiate(t.id, f, nil)
		if err != nil {
			return h.abandon(t, v, nil, err)
		}
		v.thread = t
		t.running = append(t.running, v)
	}
	root, err := v.start(configuration)
	if err != nil {
		return h.abandon(t, v, root, err)
	}
	t.root, t.loaded = root, h.elapsed()
	if old != nil {
		old.vm.retire(old)
	}
	return nil
}

// abandon leaves a thread without a filter. It ends the old context, and then the one whose configuration the
// VM refused; that is nil if the VM came to none. Envoy keeps the refused one as long as requests of the old
// one keep the VM, and it ticks until then.
func (h *Host) abandon(t *thread, v *vm, refused *scope, err error) error {
	h.log(Error, t.id, "start of filter: "+err.Error())
	old := t.root
	t.root = nil
	if old != nil {
		old.vm.retire(old)
	}
	if refused == nil {
		v.close()
	} else {
		v.retire(refused)
	}
	return err
}

// vms returns the VMs of a thread that still run something.
func (t *thread) vms() []*vm {
	kept := t.running[:0]
	for _, v := range t.running {
		if v.failed == nil && len(v.roots) > 0 {
			kept = append(kept, v)
		}
	}
	clear(t.running[len(kept):])
	t.running = kept
	return kept
}

// reloadEvery is the least time between two starts of a thread's VM. Envoy adds up to
// half of it, at random.
const reloadEvery = int64(time.Second)

type reloads struct{ success, failure, backoff atomic.Uint64 }

// Reloads counts the requests that found a failed VM, by Envoy's names: a new VM was made, it
// failed to start, or it was too early after the last start.
func (h *Host) Reloads() map[string]uint64 {
	return map[string]uint64{
		"vm_reload_success": h.reloads.success.Load(),
		"vm_reload_failure": h.reloads.failure.Load(),
		"vm_reload_backoff": h.reloads.backoff.Load(),
	}
}

// reload replaces the thread's failed VM before a request, as FAIL_RELOAD does. The requests of
// the failed VM stay with it.
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
