package quotaservice

// steps are what an ask or a call does one after the other. Each step starts operations, and says by then which step
// follows once they are done:
//
//	func (g *group) startHits() {
//		g.start(…)
//		g.start(…)
//		g.then((*group).startLastHits)
//	}
type steps[T any] struct {
	of   T // whose steps they are
	keys *keys
	left int     // operations that are not done
	next func(T) // the step that follows then
}

func newSteps[T any](of T, keys *keys) steps[T] { return steps[T]{of: of, keys: keys} }

// start lets an operation wait for its key.
func (s *steps[T]) start(o *operation) {
	s.left++
	s.keys.add(o)
}

// then has a step follow once all operations are done that were started so far. If none was, it follows at once.
func (s *steps[T]) then(step func(T)) {
	s.next = step
	if s.left == 0 {
		step(s.of)
	}
}

// done says that an operation is done.
func (s *steps[T]) done() {
	s.left--
	if s.left == 0 {
		s.next(s.of)
	}
}
