package sim

// Tick makes every configuration in a worker that asked for ticks have one
// now, due or not.
func (h *Host) Tick(worker int) error {
	t, err := h.worker(worker)
	if err != nil {
		return err
	}
	h.tick(t, true)
	return nil
}

// TickDue makes the ticks that are due by Now, each once at most, in all
// workers and in the main thread, whose VM ticks as well.
func (h *Host) TickDue() {
	for _, t := range h.threads {
		h.tick(t, false)
	}
}

// tick goes through the contexts of a thread, also those of configurations
// that wait for their last request.
func (h *Host) tick(t *thread, always bool) {
	t.Lock()
	defer t.Unlock()
	now := h.elapsed()
	for _, v := range t.vms() {
		v.deliver()
		for _, root := range v.roots {
			if root.tickPeriod == 0 || (!always && now < root.tickDue) || v.scopes[root.id] != root {
				continue
			}
			v.enter(root, callTick, uint64(root.id))
			root.tickDue = h.elapsed() + root.tickPeriod
		}
	}
}
