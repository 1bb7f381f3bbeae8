package plots

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
)

const (
	// epochMs is when the pictures begin, a multiple of every window in them.
	epochMs = 1_700_000_000_000
	// lengthMs is how long they are.
	lengthMs = 40_000
	// windowMs is the length of the windows in them.
	windowMs = 10_000
	// sampleMs is how often usage is asked for in between.
	sampleMs = 100
)

// pattern lists when the requests come, in ms from the beginning: a few, three
// bursts of twelve, two of them around the boundary at 10 s, and from 18 s on two a
// second, twice what the limit allows.
func pattern() (at []int64) {
	for i := range int64(4) {
		at = append(at, 3_010+i*150)
	}
	for _, begin := range []int64{8_210, 10_210, 13_610} {
		for i := range int64(12) {
			at = append(at, begin+i*150)
		}
	}
	for ms := int64(18_010); ms < 36_000; ms += 500 {
		at = append(at, ms)
	}
	return at
}

// run is what became of the pattern under one policy.
type run struct {
	name     string
	requests []request
	limits   []int   // of each window
	used     [][]int // of each window, every sampleMs
}

type request struct {
	atMs    int64
	allowed bool
}

// simulate runs the pattern and asks for the usage in between.
func (c commandLine) simulate(ctx context.Context, name string) (r run, err error) {
	r.name = name
	var input bytes.Buffer
	var asked []*request // nil where usage is asked for
	next := pattern()
	r.requests = make([]request, len(next))
	for ms := int64(0); ms <= lengthMs; ms += sampleMs {
		for ; len(next) > 0 && next[0] <= ms; next = next[1:] {
			q := &r.requests[len(r.requests)-len(next)]
			q.atMs = next[0]
			asked = append(asked, q)
			fmt.Fprintf(&input, `{"at_ms":%d,"headers":{"x-user-id":"alice"}}`+"\n", epochMs+q.atMs)
		}
		asked = append(asked, nil)
		fmt.Fprintf(&input, `{"at_ms":%d,"op":"get","rule":"per-user","key":["alice"]}`+"\n", epochMs+ms)
	}
	if err := os.WriteFile(c.file("requests.jsonl"), input.Bytes(), 0o600); err != nil {
		return r, err
	}
	output, err := c.run(ctx, "simulate", "-r", c.file("requests.jsonl"), "--wasm", c.wasm)
	if err != nil {
		return r, err
	}
	return r, r.read(asked, output)
}

// answer is a line of simulate's output.
type answer struct {
	Allowed bool
	Windows []struct{ Limit, Used int }
}

// read takes in the answer to each line.
func (r *run) read(asked []*request, output []byte) error {
	lines := json.NewDecoder(bytes.NewReader(output))
	for _, q := range asked {
		var a answer
		if err := lines.Decode(&a); err != nil {
			return fmt.Errorf("read simulate's output: %w", err)
		}
		if q != nil {
			q.allowed = a.Allowed
			continue
		}
		if r.used == nil {
			r.used, r.limits = make([][]int, len(a.Windows)), make([]int, len(a.Windows))
		}
		for i, w := range a.Windows {
			r.limits[i], r.used[i] = w.Limit, append(r.used[i], w.Used)
		}
	}
	return nil
}

// admitted counts the requests that were let through.
func (r run) admitted() (n int) {
	for _, q := range r.requests {
		if q.allowed {
			n++
		}
	}
	return n
}

// recent is how many were let through in the window's length up to ms.
func (r run) recent(ms int64) (n int) {
	for _, q := range r.requests {
		if q.allowed && q.atMs <= ms && q.atMs > ms-windowMs {
			n++
		}
	}
	return n
}

// highest is the most that were let through in any interval of a window's length.
func (r run) highest() (n int) {
	for _, q := range r.requests {
		n = max(n, r.recent(q.atMs))
	}
	return n
}
