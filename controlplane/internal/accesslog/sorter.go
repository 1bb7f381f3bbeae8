package accesslog

// sorter puts requests into the order of time, as far as they stand no further from
// their place than a span. It is a heap.
type sorter struct {
	spanNs int64
	heap   []placed
	newest int64
	bytes  int
	number uint64
}

type placed struct {
	*Request
	number uint64 // among equal times, the order of lines
	bytes  int    // about what it takes
}

// What a sorter holds is bounded; beyond that the oldest goes on early.
const (
	maxSorting      = 1 << 18
	maxSortingBytes = 128 << 20
)

func (p placed) before(q placed) bool { return p.Ns < q.Ns || p.Ns == q.Ns && p.number < q.number }

func (s *sorter) push(r *Request, bytes int) {
	s.newest = max(s.newest, r.Ns)
	s.bytes += bytes
	s.number++
	s.heap = append(s.heap, placed{r, s.number, bytes})
	for i := len(s.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !s.heap[i].before(s.heap[parent]) {
			break
		}
		s.heap[i], s.heap[parent] = s.heap[parent], s.heap[i]
		i = parent
	}
}

// pop returns the oldest request if nothing older can come, or if all is in.
func (s *sorter) pop(all bool) *Request {
	n := len(s.heap) - 1
	if n < 0 || !all && s.heap[0].Ns > s.newest-s.spanNs && n < maxSorting && s.bytes < maxSortingBytes {
		return nil
	}
	first := s.heap[0]
	s.heap[0] = s.heap[n]
	s.heap[n] = placed{}
	s.heap = s.heap[:n]
	for i := 0; ; {
		child := 2*i + 1
		if child+1 < n && s.heap[child+1].before(s.heap[child]) {
			child++
		}
		if child >= n || !s.heap[child].before(s.heap[i]) {
			break
		}
		s.heap[i], s.heap[child] = s.heap[child], s.heap[i]
		i = child
	}
	s.bytes -= first.bytes
	return first.Request
}
