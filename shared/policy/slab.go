package policy

// slab hands out pieces of larger allocations: a policy has a hundred thousand
// small parts, and every worker allocates each of them.
type slab[T any] struct {
	free []T
	size int // of the last allocation
}

// take returns n zero values.
func (s *slab[T]) take(n int) []T {
	const least, most = 8, 256
	if n > len(s.free) {
		s.size = min(max(2*s.size, least), most)
		s.free = make([]T, max(n, s.size))
	}
	taken := s.free[:n:n]
	s.free = s.free[n:]
	return taken
}

// copied returns a copy of values.
func (s *slab[T]) copied(values []T) []T {
	c := s.take(len(values))
	copy(c, values)
	return c
}
