package e2e

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// steady is a load of constant rate on several proxies. It remembers what became of
// each request and when.
type steady struct {
	rules []steadyRule

	mu        sync.Mutex
	addresses []string // "" = the proxy is known to be dead
	sent      []int    // requests, by rule
	all       []exchange
	beside    []exchange // requests that no rule concerns
	turn      int
	name      string // of the keys
}

// steadyRule is a rule that the load concerns, by the path of its name. A key has so
// many requests, then the next one has its turn: each is in the midst of its limit at
// some time.
type steadyRule struct {
	name     string
	limit    int
	requests int // 0 = one key gets them all
}

// exchange is one request, and what became of it when.
type exchange struct {
	rule, key   string
	proxy       int
	from, until int64 // ns, by the wall clock when it was sent
	status      int16 // 0: the connection ended
	excused     bool  // the connection ended with its proxy
}

const (
	steadyConnections = 6 // to each proxy
	steadyEvery       = 50 * time.Millisecond
	besideConnections = 4
	besideEvery       = 10 * time.Millisecond
	// steadyFree is the path that no rule concerns.
	steadyFree = "free"
)

// run sends requests until stop is closed.
func (s *steady) run(stop <-chan struct{}) {
	var wg sync.WaitGroup
	for p := range s.addresses {
		for i := range besideConnections {
			c := &steadyConnection{load: s, proxy: p, beside: true}
			c.send() // connects, so that each worker has some of them
			wg.Go(func() { c.run(stop, besideEvery*time.Duration(i)/besideConnections, besideEvery) })
		}
	}
	for p := range s.addresses {
		for i := range steadyConnections {
			c := &steadyConnection{load: s, proxy: p}
			wg.Go(func() { c.run(stop, steadyEvery*time.Duration(i)/steadyConnections, steadyEvery) })
		}
	}
	wg.Wait()
}

// move says where a proxy is now, "" if nowhere.
func (s *steady) move(proxy int, address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addresses[proxy] = address
}

func (s *steady) address(proxy int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addresses[proxy]
}

// request is the next one: the rules take turns.
func (s *steady) request() (e exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.turn % len(s.rules)
	s.turn++
	r := s.rules[i]
	generation := 0
	if r.requests > 0 {
		generation = s.sent[i] / r.requests
	}
	s.sent[i]++
	return exchange{rule: r.name, key: fmt.Sprintf("%s-%d", s.name, generation)}
}

func (s *steady) done(e exchange, beside bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.excused = e.status == 0 && s.addresses[e.proxy] == ""
	if beside {
		s.beside = append(s.beside, e)
	} else {
		s.all = append(s.all, e)
	}
}

// take returns what has become of all requests so far, and begins anew.
func (s *steady) take(name string) (all, beside []exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, beside = s.all, s.beside
	s.all = nil
	s.beside = nil
	s.name = name
	clear(s.sent)
	return all, beside
}

// since returns how many requests that were sent after the instant have ended.
func (s *steady) since(ns int64) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.all {
		if s.all[i].from > ns {
			n++
		}
	}
	return n
}

// steadyConnection sends one request after the other.
type steadyConnection struct {
	load   *steady
	proxy  int
	beside bool // no rule concerns its requests
	connection
}

func (c *steadyConnection) run(stop <-chan struct{}, offset, every time.Duration) {
	defer c.close()
	time.Sleep(offset)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			c.send()
		}
	}
}

func (c *steadyConnection) send() {
	address := c.load.address(c.proxy)
	if address == "" {
		c.close()
		return
	}
	e := exchange{rule: steadyFree}
	if !c.beside {
		e = c.load.request()
	}
	c.sendTo(address, e)
}

// sendTo sends a request of that rule and key.
func (c *steadyConnection) sendTo(address string, e exchange) {
	e.proxy = c.proxy
	began := time.Now()
	e.from = began.UnixNano()
	status, err := c.exchange(address, e.rule, e.key)
	e.until = e.from + int64(time.Since(began))
	e.status = status
	if err != nil {
		e.status = 0
		c.close()
	}
	c.load.done(e, c.beside)
}

func (c *steadyConnection) exchange(address, rule, key string) (int16, error) {
	return c.ask(address, "/"+rule, "x-user-id: "+key)
}

// overFar is by how much the keys of a rule whose window has not ended went over its
// limit.
func overFar(all []exchange, r steadyRule) (over int) {
	admitted := map[string]int{}
	for _, e := range all {
		if e.rule == r.name && e.status == allowed {
			admitted[e.key]++
			over = max(over, admitted[e.key]-r.limit)
		}
	}
	return over
}

// overWindows is the same for windows of a second, aligned by the clock. A request is
// counted in a window that had not ended when the request was sent and had begun when
// its response came. What is over could be counted nowhere.
func overWindows(all []exchange, r steadyRule) (over int) {
	var admitted []exchange
	for _, e := range all {
		if e.rule == r.name && e.status == allowed {
			admitted = append(admitted, e)
		}
	}
	slices.SortFunc(admitted, func(a, b exchange) int { return int(a.until - b.until) })
	const second = int64(time.Second)
	counted := map[int64]int{}
	for _, e := range admitted { // those that must be counted soonest are first
		window := e.from / second
		for window < e.until/second && counted[window] >= r.limit {
			window++
		}
		if counted[window]++; counted[window] > r.limit {
			over = max(over, counted[window]-r.limit)
		}
	}
	return over
}

// waits returns how long the slowest request took beyond what the machine added, and
// how long it took in all. What the machine added is what it took the slowest request
// that no rule concerns, on the same proxy at the same time.
func waits(all, beside []exchange) (wait, took time.Duration) {
	for _, e := range all {
		d := time.Duration(e.until - e.from)
		took = max(took, d)
		if d <= wait || e.status == 0 {
			continue
		}
		added := int64(0)
		for _, b := range beside {
			if b.proxy == e.proxy && b.from <= e.until && b.until >= e.from {
				added = max(added, min(b.until, e.until)-max(b.from, e.from))
			}
		}
		wait = max(wait, d-time.Duration(added))
	}
	return wait, took
}
