package lease

// SetSilent has the worker take the service for silent, or not, without having waited for it.
func (w *Worker) SetSilent(silent bool) { w.silent = silent }
