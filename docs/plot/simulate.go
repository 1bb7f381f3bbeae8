package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

const (
	// epochMs is when the pictures begin, a multiple of every window in them.
	epochMs = 1_700_000_000_000
	// lengthMs is how long they are.
	lengthMs = 40_000
	// windowMs is the length of the windows drawn.
	windowMs = 10_000
	// sampleMs is how often usage is asked for in between.
	sampleMs = 100
)

// pattern lists when the requests come, in ms from the beginning: a few, three
// bursts of twelve, two of them around the boundary at 10 s, and from 18 s on
// two a second, twice what the limit allows.
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
	limits   []uint32   // of each window
	used     [][]uint32 // of each window, every sampleMs
}

type request struct {
	atMs    int64
	allowed bool
}

// answer is a line of simulate's output.
type answer struct {
	Allowed bool `json:"allowed"`
	Windows []struct {
		Limit uint32 `json:"limit"`
		Used  uint32 `json:"used"`
	} `json:"windows"`
}

// simulate runs the pattern and asks for the usage in between.
func (c command) simulate(name, policy string) (run, error) {
	r := run{name: name}
	var input bytes.Buffer
	next := pattern()
	for ms := int64(0); ms <= lengthMs; ms += sampleMs {
		for len(next) > 0 && next[0] <= ms {
			r.requests = append(r.requests, request{atMs: next[0]})
			fmt.Fprintf(&input, `{"at_ms":%d,"headers":{"x-user-id":"alice"}}`+"\n", epochMs+next[0])
			next = next[1:]
		}
		fmt.Fprintf(&input, `{"at_ms":%d,"op":"get","rule":"per-user","key":["alice"]}`+"\n", epochMs+ms)
	}
	file := filepath.Join(filepath.Dir(policy), "requests.jsonl")
	if err := os.WriteFile(file, input.Bytes(), 0o600); err != nil {
		return r, err
	}
	output, err := c.output("simulate", "-f", policy, "-r", file, "--wasm", c.wasm)
	if err != nil {
		return r, err
	}
	return r, r.read(input.Bytes(), output)
}

// read takes the answers in.
func (r *run) read(input, output []byte) error {
	asked, answered := bytes.Split(bytes.TrimSpace(input), []byte("\n")), bytes.Split(bytes.TrimSpace(output), []byte("\n"))
	if len(asked) != len(answered) {
		return fmt.Errorf("simulate %s: %d lines in, %d out", r.name, len(asked), len(answered))
	}
	n := 0
	for i, line := range answered {
		var a answer
		if err := json.Unmarshal(line, &a); err != nil {
			return fmt.Errorf("read simulate's output: %w", err)
		}
		if !bytes.Contains(asked[i], []byte(`"op"`)) {
			r.requests[n].allowed = a.Allowed
			n++
			continue
		}
		if r.used == nil {
			r.used, r.limits = make([][]uint32, len(a.Windows)), make([]uint32, len(a.Windows))
		}
		for j, w := range a.Windows {
			r.limits[j] = w.Limit
			r.used[j] = append(r.used[j], w.Used)
		}
	}
	return nil
}

// admitted counts the requests that were let through.
func (r *run) admitted() (n int) {
	for _, q := range r.requests {
		if q.allowed {
			n++
		}
	}
	return n
}

// recent is how many were let through in the window's length up to ms.
func (r *run) recent(ms int64) (n int) {
	for _, q := range r.requests {
		if q.allowed && q.atMs <= ms && q.atMs > ms-windowMs {
			n++
		}
	}
	return n
}

// most is the most that were let through in any interval of a window's length.
func (r *run) most() (n int) {
	for _, q := range r.requests {
		n = max(n, r.recent(q.atMs))
	}
	return n
}

func (c command) output(args ...string) ([]byte, error) {
	cmd := exec.Command(c.sluice, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run sluice %s: %w\n%s", args[0], err, errs.String())
	}
	return out, nil
}
