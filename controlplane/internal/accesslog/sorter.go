package accesslog

import (
	"cmp"
	"container/heap"
)

// sorter puts requests into the order of time, as far as they stand no further from
// their place than a span.
type sorter struct {
	spanNs int64
	queue  queue
	newest int64
	bytes  int
	number uint64
}

type placed struct {
	*Request
	number uint64 // among equal times, the order of lines
	bytes  int    // about what it takes
}

// queue implements heap.Interface.
type queue []placed

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(q[i].Ns, q[j].Ns), cmp.Compare(q[i].number, q[j].number)) < 0
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(p any)   { *q = append(*q, p.(placed)) }
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	(*q)[len(*q)-1] = placed{}
	*q = (*q)[:len(*q)-1]
	return last
}

// What a sorter holds is bounded; beyond that the oldest goes on early.
const (
	maxSorting      = 1 << 18
	maxSortingBytes = 128 << 20
)

func (s *sorter) push(r *Request, bytes int) {
	s.newest = max(s.newest, r.Ns)
	s.bytes += bytes
	s.number++
	heap.Push(&s.queue, placed{r, s.number, bytes})
}

// pop returns the oldest request if nothing older can come, or if all is in.
func (s *sorter) pop(all bool) *Request {
	if n := len(s.queue); n == 0 || !all && s.queue[0].Ns > s.newest-s.spanNs && n <= maxSorting && s.bytes < maxSortingBytes {
		return nil
	}
	first := heap.Pop(&s.queue).(placed)
	s.bytes -= first.bytes
	return first.Request
}
