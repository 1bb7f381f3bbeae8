package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policydiff"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/answer"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Step is what one line of simulate got.
type Step struct {
	Line string // as given
	AtMs int64  `json:"at_ms"`
	Op   string `json:"op"`

	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"`
	answer.Answer
}

// Answer reads a question and writes its reply, within bounds of this process's time
// and memory. The filter is compiled by Prepare alone, which has no bounds.
func Answer(ctx context.Context, in io.Reader, out io.Writer, filter []byte, cacheDir string) error {
	var q Question
	if err := json.NewDecoder(in).Decode(&q); err != nil {
		return fmt.Errorf("read question: %w", err)
	}
	if q.Prepare {
		if err := compile(ctx, filter, cacheDir); err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(Reply{})
	}
	if err := confine(); err != nil {
		return fmt.Errorf("bound this process: %w", err)
	}
	r := q.reply()
	if q.Lines != "" && len(r.Problems) == 0 {
		steps, err := q.steps(ctx, filter, cacheDir)
		if err != nil {
			r.Trouble = err.Error()
		}
		r.Steps = steps
	}
	return json.NewEncoder(out).Encode(r)
}

func compile(ctx context.Context, filter []byte, cacheDir string) error {
	host, err := sim.New(ctx, sim.Options{Wasm: filter, Workers: 1, CacheDir: cacheDir})
	if err == nil {
		host.Close()
	}
	return err
}

// reply judges the policy and compares it with the one before.
func (q *Question) reply() *Reply {
	p, tree, warnings, err := policyfile.Read(q.After.File, []byte(q.After.YAML))
	var problems policyfile.Errors
	errors.As(err, &problems)
	r := &Reply{Problems: api.Problems(problems), Warnings: api.Problems(warnings)}
	if q.Before == nil {
		return r
	}
	text := diff.Diff("before", []byte(q.Before.YAML), "after", []byte(q.After.YAML))
	_, hunks, _ := bytes.Cut(text, []byte("\n")) // the line of a command that was never given
	r.Diff = string(hunks)
	if err != nil {
		return r
	}
	if old, oldTree, _, err := policyfile.Read(q.Before.File, []byte(q.Before.YAML)); err == nil {
		r.Changes = api.Changes(old, p)
		r.Words = policydiff.Words(oldTree, tree)
	}
	return r
}

// steps has the filter decide the lines.
func (q *Question) steps(ctx context.Context, filter []byte, cacheDir string) ([]Step, error) {
	var lines []string
	for line := range strings.Lines(q.Lines) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	for i, line := range lines {
		var l struct{ Op string }
		if json.Unmarshal([]byte(line), &l) == nil && l.Op == "policy" {
			return nil, fmt.Errorf("line %d: the policy here is the one above: op policy names a file, which is not read", i+1)
		}
	}
	var out bytes.Buffer
	err := simulate.Run(ctx, simulate.Options{
		Wasm: filter, Policy: q.After.File, Text: []byte(q.After.YAML), Requests: strings.NewReader(q.Lines),
		Workers: 1, Seed: 1, CacheDir: cacheDir, Log: func(string) {},
	}, &out)
	if err != nil {
		return nil, err
	}
	steps := make([]Step, len(lines))
	decoder := json.NewDecoder(&out)
	for i := range steps {
		if err := decoder.Decode(&steps[i]); err != nil {
			return nil, fmt.Errorf("read what simulate wrote: %w", err)
		}
		steps[i].Line = lines[i]
	}
	return steps, nil
}

// IsAllowed says what the verdict is, where there is one.
func (s *Step) IsAllowed() bool { return s.Allowed != nil && *s.Allowed }

// Retry says when a denied request would be allowed.
func (s *Step) Retry() string {
	switch {
	case s.RetryMs == nil:
		return ""
	case *s.RetryMs < 0:
		return "whenever it comes"
	}
	return fmt.Sprintf("allowed again in %d ms", *s.RetryMs)
}

// Words say what each rule made of the request.
func (s *Step) Words() []string {
	words := make([]string, len(s.Rules))
	for i := range s.Rules {
		words[i] = ruleWords(&s.Rules[i])
	}
	return words
}

// ruleWords is a rule's key, what it has left, and what it decided: "per-user alice: 0
// left, denied: limit".
func ruleWords(r *answer.Rule) string {
	name := r.Rule
	for _, part := range r.Key {
		if part == nil {
			name += " (missing)"
			continue
		}
		name += " " + *part
	}
	var words []string
	if r.Remaining != nil {
		words = append(words, fmt.Sprintf("%d left", *r.Remaining))
	}
	switch reason := strings.ReplaceAll(r.Reason, "_", " "); {
	case r.Reason == "not_asked":
		words = append(words, reason)
	case !r.Allowed && r.Mode == string(policy.ModeShadow):
		words = append(words, "would deny: "+reason)
	case !r.Allowed:
		words = append(words, "denied: "+reason)
	case reason != "":
		words = append(words, reason)
	case r.Remaining == nil:
		words = append(words, "unlimited")
	}
	return name + ": " + strings.Join(words, ", ")
}
