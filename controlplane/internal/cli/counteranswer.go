package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// counterRow is one proxy and its answer, or what went wrong.
type counterRow struct {
	Proxy    string `json:"proxy"`
	Revision uint64 `json:"revision,omitempty"` // it runs, as far as the server knows
	URL      string `json:"url,omitempty"`
	Error    string `json:"error,omitempty"`
	Hint     string `json:"hint,omitempty"`
	counterAnswer
}

func (r *counterRow) fail(err error) { r.Error, r.Hint = err.Error(), Hint(err) }

// counterAnswer is a proxy's answer with times as simulate has them: in
// milliseconds, rounded up.
type counterAnswer struct {
	Value   *int64           `json:"value,omitempty"`
	Windows []counterWindow  `json:"windows,omitempty"`
	Allowed *bool            `json:"allowed,omitempty"`
	Denied  string           `json:"denied_by,omitempty"`
	RetryMs *int64           `json:"retry_after_ms,omitempty"` // of a denial; -1 = never
	Rules   []counterVerdict `json:"rules,omitempty"`          // of hit and peek
	Stats   []counterStats   `json:"stats,omitempty"`
}

type counterVerdict struct {
	Rule      string          `json:"rule"`
	Key       []string        `json:"key"`
	Mode      string          `json:"mode"`
	Allowed   bool            `json:"allowed"`
	Reason    string          `json:"reason,omitempty"`
	Remaining *uint32         `json:"remaining,omitempty"`
	Windows   []counterWindow `json:"windows"`
}

type counterWindow struct {
	Name      string  `json:"name,omitempty"`
	Unlimited bool    `json:"unlimited,omitempty"`
	Limit     *uint32 `json:"limit,omitempty"`
	PerMs     int64   `json:"per_ms"`
	Used      uint32  `json:"used"`
	Remaining *uint32 `json:"remaining,omitempty"`
	ResetMs   int64   `json:"reset_ms"`
}

type counterStats struct {
	Rule     string            `json:"rule"`
	Keys     uint64            `json:"keys"`
	Capacity uint64            `json:"capacity"`
	Slots    uint64            `json:"slots"`
	Buckets  uint64            `json:"buckets"`
	Bytes    uint64            `json:"bytes"`
	Metrics  map[string]uint64 `json:"metrics"`
}

// UnmarshalJSON reads a window as the filter writes it, in nanoseconds.
func (w *counterWindow) UnmarshalJSON(text []byte) error {
	type plainWindow counterWindow // without this method
	var ns struct {
		plainWindow
		PerNs   int64 `json:"per_ns"`
		ResetNs int64 `json:"reset_ns"`
	}
	if err := json.Unmarshal(text, &ns); err != nil {
		return fmt.Errorf("read window: %w", err)
	}
	*w = counterWindow(ns.plainWindow)
	w.PerMs, w.ResetMs = milliseconds(ns.PerNs), milliseconds(ns.ResetNs)
	return nil
}

// milliseconds rounds up.
func milliseconds(ns int64) int64 {
	ms := ns / 1e6
	if ns%1e6 > 0 {
		ms++
	}
	return ms
}

// readCounterAnswer reads an answer; it reports whether it is one.
func readCounterAnswer(op operation, text []byte) (counterAnswer, bool) {
	var raw struct {
		Value   *int64          `json:"value"`
		Windows []counterWindow `json:"windows"`
		Allowed *bool           `json:"allowed"`
		Denied  string          `json:"denied_by"`
		RetryNs int64           `json:"retry_after_ns"`
		Rules   json.RawMessage `json:"rules"`
	}
	if json.Unmarshal(text, &raw) != nil {
		return counterAnswer{}, false
	}
	switch op.name {
	case "stats":
		var a counterAnswer
		return a, json.Unmarshal(raw.Rules, &a.Stats) == nil
	case "hit", "peek":
		a := counterAnswer{Allowed: raw.Allowed, Denied: raw.Denied}
		if raw.Allowed == nil || json.Unmarshal(raw.Rules, &a.Rules) != nil {
			return counterAnswer{}, false
		}
		if !*raw.Allowed {
			ms := raw.RetryNs
			if ms > 0 {
				ms = milliseconds(ms)
			}
			a.RetryMs = &ms
		}
		return a, true
	case "expires-at":
		if raw.Value != nil {
			*raw.Value = milliseconds(*raw.Value)
		}
	default: // values are what they are
	}
	return counterAnswer{Value: raw.Value, Windows: raw.Windows}, raw.Value != nil
}

// counterReport is what counters prints as JSON.
type counterReport struct {
	Op      string       `json:"op"`
	Proxies []counterRow `json:"proxies"`
	Failed  int          `json:"failed"`
	Sum     *int64       `json:"sum,omitempty"` // of the values there are
}

// print prints what the proxies answered, and the sum where there is one.
func (o *countersOptions) print(w io.Writer, rows []counterRow, sum bool) error {
	report := counterReport{Op: o.op.wire, Proxies: rows}
	total := int64(0)
	for _, r := range rows {
		if r.Value != nil {
			total += *r.Value
		}
		if r.Error != "" {
			report.Failed++
		}
	}
	sum = sum && o.op.sums
	if sum {
		report.Sum = &total
	}
	if o.output == outputJSON {
		return printJSON(w, report)
	}
	table := [][]string{counterHeads(o.op)}
	for _, r := range rows {
		if r.Error != "" {
			table = append(table, []string{r.Proxy, "failed: " + r.Error})
			continue
		}
		table = append(table, counterCells(o.op, r)...)
	}
	if sum {
		table = append(table, []string{"sum", strconv.FormatInt(total, 10)})
	}
	return printTable(w, table)
}

func counterHeads(op operation) []string {
	switch op.name {
	case "hit", "peek":
		return []string{"PROXY", "ANSWER", "WINDOWS"}
	case "expires-at":
		return []string{"PROXY", "EXPIRES AT", "WINDOWS"}
	case "reset":
		return []string{"PROXY", "ANSWER"}
	case "clean":
		return []string{"PROXY", "FREED"}
	case "stats":
		return []string{"PROXY", "RULE", "KEYS", "CAPACITY", "BYTES", "ALLOWED", "DENIED", "EVICTED", "FLOOR DENIED"}
	}
	return []string{"PROXY", "USED", "WINDOWS"}
}

// counterCells are the lines of one proxy: one, but for stats.
func counterCells(op operation, r counterRow) [][]string {
	switch op.name {
	case "stats":
		rows := make([][]string, 0, len(r.Stats))
		for _, s := range r.Stats {
			row := []string{r.Proxy, s.Rule}
			for _, n := range []uint64{
				s.Keys, s.Capacity, s.Bytes, s.Metrics["allowed"], s.Metrics["denied"], s.Metrics["evicted"], s.Metrics["floor_denied"],
			} {
				row = append(row, strconv.FormatUint(n, 10))
			}
			rows = append(rows, row)
		}
		if len(rows) == 0 {
			rows = append(rows, []string{r.Proxy, "no rules"})
		}
		return rows
	case "hit", "peek":
		return [][]string{verdictCells(r)}
	case "expires-at":
		at := ""
		if *r.Value > 0 {
			at = time.UnixMilli(*r.Value).UTC().Format("2006-01-02 15:04:05.000Z")
		}
		return [][]string{{r.Proxy, at, windowsText(r.Windows)}}
	case "reset":
		if *r.Value == 0 {
			return [][]string{{r.Proxy, "there was no such key"}}
		}
		return [][]string{{r.Proxy, "reset"}}
	case "clean":
		return [][]string{{r.Proxy, strconv.FormatInt(*r.Value, 10)}}
	}
	return [][]string{{r.Proxy, strconv.FormatInt(*r.Value, 10), windowsText(r.Windows)}}
}

func verdictCells(r counterRow) []string {
	answer := "allowed"
	reasons := map[string]bool{}
	var windows []counterWindow
	for _, v := range r.Rules {
		windows = append(windows, v.Windows...)
		switch {
		case v.Mode == "shadow" && !v.Allowed:
			answer += ", denied in shadow mode"
		case v.Reason != "" && v.Reason != "limit":
			reasons[v.Reason] = true
		}
	}
	if !*r.Allowed {
		answer = "denied"
		switch {
		case *r.RetryMs < 0:
			answer += ", and no wait would help"
		default:
			answer += ", retry after " + policy.FormatDuration(*r.RetryMs*int64(time.Millisecond))
		}
	}
	if len(reasons) > 0 {
		answer += " (" + strings.Join(slices.Sorted(maps.Keys(reasons)), ", ") + ")"
	}
	return []string{r.Proxy, answer, windowsText(windows)}
}

// windowsText is windows in a cell: "3 of 10 per 1m; daily 12 of 1000 per 1d".
func windowsText(windows []counterWindow) string {
	texts := make([]string, 0, len(windows))
	for _, w := range windows {
		of := "any number"
		if w.Limit != nil {
			of = strconv.FormatUint(uint64(*w.Limit), 10)
		}
		text := fmt.Sprintf("%d of %s per %s", w.Used, of, policy.FormatDuration(w.PerMs*int64(time.Millisecond)))
		if w.Name != "" {
			text = w.Name + " " + text
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "; ")
}
