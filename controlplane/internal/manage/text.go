package manage

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// VerdictText is what a proxy answers to a hit: "denied, retry after 30s (held)".
func VerdictText(a *result.Result) string {
	text := "allowed"
	reasons := map[string]bool{}
	for _, v := range a.Rules {
		switch {
		case v.Mode == "shadow" && !v.Allowed:
			text += ", denied in shadow mode"
		case v.Reason != "" && v.Reason != "limit":
			reasons[v.Reason] = true
		}
	}
	switch {
	case *a.Allowed:
	case *a.RetryMs < 0:
		text = "denied, and waiting does not help"
	default:
		text = "denied, retry after " + Span(*a.RetryMs)
	}
	if len(reasons) > 0 {
		text += " (" + strings.Join(slices.Sorted(maps.Keys(reasons)), ", ") + ")"
	}
	return text
}

// WindowsText is windows in a table's cell: "3 of 10 per 1m; daily 12 of 1000 per 1d". With ends
// it says when each window ends. A bucket can hold another number of tokens than it gains in a
// period, so its text has both: "3 used, 120 per 1m, burst 100".
func WindowsText(windows []result.Window, ends bool) string {
	texts := make([]string, 0, len(windows))
	for i := range windows {
		texts = append(texts, windowText(&windows[i], ends))
	}
	return strings.Join(texts, "; ")
}

func windowText(w *result.Window, ends bool) string {
	text := strconv.FormatUint(uint64(w.Used), 10)
	if w.Requests != nil {
		text += " used, "
	} else {
		text += " of "
	}
	text += LimitText(w, "any number")
	if w.Name != "" {
		text = w.Name + " " + text
	}
	if ends && w.Used > 0 && w.ResetMs > 0 {
		text += ", new in " + Span(w.ResetMs)
	}
	return text
}

// HeldText is the units that running requests hold, in addition to the used units. It is empty for
// slots: their used units are the held ones.
func HeldText(held *uint32, windows []result.Window) string {
	if held == nil || *held == 0 || len(windows) == 0 || windows[0].PerMs == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(*held), 10) + " held"
}

// BlockedText is what is left of a key's block: "blocked for 59m". It is empty if the key is not blocked.
func BlockedText(ms int64) string {
	if ms == 0 {
		return ""
	}
	return "blocked for " + Span(ms)
}

// LimitText is a window's limit: "10 per 1m", "5 at once" or "120 per 1m, burst 100", and where
// requests say it, if they do. If there is no limit, it has the word unlimited in its place.
func LimitText(w *result.Window, unlimited string) string {
	most := unlimited
	if w.Limit != nil {
		most = strconv.FormatUint(uint64(*cmp.Or(w.Requests, w.Limit)), 10)
	}
	switch {
	case w.LimitFrom != "" && w.LimitIs != "":
		most += " (" + w.LimitIs + " of " + printable.Text(w.LimitFrom) + ")"
	case w.LimitFrom != "":
		most += " (" + printable.Text(w.LimitFrom) + ")"
	}
	switch {
	case w.PerMs == 0:
		return most + " at once"
	case w.Requests != nil && w.Limit != nil: // a proxy may leave out either
		return most + " per " + Per(w) + ", burst " + strconv.FormatUint(uint64(*w.Limit), 10)
	}
	return most + " per " + Per(w)
}

// Per is how long a window is, as a policy has it.
func Per(w *result.Window) string {
	if w.Months > 0 {
		return policy.FormatMonths(w.Months)
	}
	return Span(w.PerMs)
}

// SilentText says what decides at a proxy while it gets no answer from the quota service.
func SilentText(onUnavailable string) string {
	text := "the quota service does not answer, so on_unavailable decides: " + printable.Text(onUnavailable)
	if onUnavailable == string(policy.UnavailableLocal) {
		text += ", the proxy's own share of the limits"
	}
	return text
}

// PartText is a part of a key, or why its value is not there.
func PartText(p result.KeyPart) string {
	switch {
	case p.Missing:
		return "missing"
	case p.Hidden || p.Value == nil:
		return "hidden: a credential"
	}
	return strconv.Quote(*p.Value)
}

// Span prints milliseconds as a policy has them.
func Span(ms int64) string { return policy.FormatDuration(ms * int64(time.Millisecond)) }
