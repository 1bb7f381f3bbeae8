package policy

import "strings"

// meant are words that other rate limiters and their configurations have for
// what a policy calls by another name, each with the names it may stand for.
var meant = []struct {
	word  string
	names []string
}{
	// fields
	{"rate", []string{"requests", "limits"}},
	{"limit", []string{"requests", "limits"}},
	{"rate_limit", []string{"limits"}},
	{"rate_limits", []string{"limits"}},
	{"quota", []string{"requests", "limits"}},
	{"count", []string{"requests"}},
	{"max", []string{"requests"}},
	{"max_requests", []string{"requests"}},
	{"requests_per_unit", []string{"requests"}},
	{"tokens_per_fill", []string{"requests"}},
	{"amount", []string{"requests"}},
	{"unit", []string{"per"}},
	{"period", []string{"per"}},
	{"window", []string{"per"}},
	{"window_size", []string{"per"}},
	{"interval", []string{"per"}},
	{"fill_interval", []string{"per"}},
	{"duration", []string{"per"}},
	{"every", []string{"per"}},
	{"max_tokens", []string{"burst"}},
	{"bucket_size", []string{"burst"}},
	{"type", []string{"algorithm"}},
	{"strategy", []string{"algorithm"}},
	{"id", []string{"name"}},
	{"namespace", []string{"domain"}},
	{"when", []string{"match"}},
	{"matches", []string{"match"}},
	{"descriptors", []string{"key"}},
	{"actions", []string{"key"}},
	{"weight", []string{"cost"}},
	{"hits_addend", []string{"cost"}},
	{"shadow_mode", []string{"mode"}},
	{"dry_run", []string{"mode", "shadow"}},
	{"authority", []string{"hosts", "host"}},
	{"domains", []string{"hosts"}},
	{"prefix", []string{"paths"}},
	{"path_prefix", []string{"paths"}},
	{"url", []string{"paths", "path"}},
	{"token", []string{"token_sha256"}},
	// parts of a key
	{"ip", []string{"client_ip"}},
	{"remote_address", []string{"client_ip"}},
	{"remote_ip", []string{"client_ip"}},
	{"source_ip", []string{"client_ip"}},
	{"header_name", []string{"header"}},
	{"request_header", []string{"header"}},
	// words
	{"gcra", []string{"token_bucket"}},
	{"leaky_bucket", []string{"token_bucket"}},
	{"bucket", []string{"token_bucket"}},
	{"fixed", []string{"fixed_window"}},
	{"moving_window", []string{"sliding_window_log"}},
	{"audit", []string{"shadow"}},
	{"monitor", []string{"shadow"}},
	{"report", []string{"shadow"}},
	{"log", []string{"shadow"}},
	{"on", []string{"enforce"}},
	{"enabled", []string{"enforce"}},
	{"disabled", []string{"off"}},
	{"open", []string{"allow"}},
	{"fail_open", []string{"allow"}},
	{"closed", []string{"deny"}},
	{"fail_closed", []string{"deny"}},
	{"block", []string{"deny"}},
	{"reject", []string{"deny"}},
	{"ignore", []string{"skip"}},
	{"evict", []string{"inherit"}},
	{"draft-10", []string{"ietf"}},
	{"x-rate-limit", []string{"x-ratelimit"}},
}

// elsewhere are fields of a whole policy that say it is another program's.
var elsewhere = []struct{ field, message string }{
	{"apiVersion", "a policy is no Kubernetes object: its fields stand at the top of the file"},
	{"descriptors", "this is how envoyproxy/ratelimit is configured: sluice import envoy-ratelimit makes a policy of it"},
}

// foreign says what program a policy is of that has this field at its top.
func foreign(field string) string {
	for _, e := range elsewhere {
		if e.field == field {
			return e.message
		}
	}
	return ""
}

// likely is the one of words that s most likely stands for, by its spelling or
// its meaning; "" where none does.
func likely(s string, words []string) string {
	if near := nearest(s, words); near != "" {
		return near
	}
	s = strings.ReplaceAll(snake(s), "-", "_")
	if near := nearest(s, words); near != "" {
		return near
	}
	for _, m := range meant {
		if strings.ReplaceAll(m.word, "-", "_") != s {
			continue
		}
		for _, name := range m.names {
			if indexOf(words, name) >= 0 {
				return name
			}
		}
	}
	return ""
}

// snake writes camelCase as camel_case.
func snake(s string) string {
	const longest = 64 // as in nearest
	if len(s) > longest {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if upper := c >= 'A' && c <= 'Z'; upper {
			if i > 0 && (s[i-1] < 'A' || s[i-1] > 'Z') {
				b.WriteByte('_')
			}
			c |= 0x20
		}
		b.WriteByte(c)
	}
	return b.String()
}

// home is where a field stands that was found somewhere else.
type home struct {
	place  string
	fields []string
}

// homes are the objects whose fields people put in the wrong place. The reader
// carries them: were it to name the tables, they would name each other.
func homes() []home {
	return []home{
		{"at the top of the policy", names(policyFields)},
		{"in a rule, an item of rules", names(ruleFields)},
		{"in match", names(matchFields)},
		{"in a limit, an item of limits", names(limitFields)},
		{"in a part of a key, an item of key", names(keyFields)},
	}
}

// misplaced says where a field belongs that is not known here.
func (r *reader) misplaced(name string) string {
	for _, h := range r.homes {
		if indexOf(h.fields, name) >= 0 {
			return "it belongs " + h.place
		}
	}
	return ""
}

// durationMeant is the duration that s most likely stands for, with the words
// and abbreviations that other programs take; "" where there is none.
func durationMeant(s string) string {
	s = strings.ToLower(strings.ReplaceAll(s, " ", ""))
	count, word := cutDigits(s)
	if count == "" {
		count = "1"
	}
	for _, m := range []struct{ words, unit string }{
		{"|s|sec|secs|second|seconds|", "s"}, {"|m|min|mins|minute|minutes|", "m"}, {"|h|hr|hrs|hour|hours|", "h"},
		{"|d|day|days|", "d"}, {"|w|wk|week|weeks|", "w"}, {"|ms|msec|millis|millisecond|milliseconds|", "ms"},
	} {
		if word != "" && strings.Contains(m.words, "|"+word+"|") {
			return count + m.unit
		}
	}
	n := decimal(count)
	const most = 1000 // beyond it no window is as long
	switch {
	case n == 0 || n > most:
	case word == "mo", word == "mon", word == "month", word == "months":
		return itoa(int64(n)*30) + "d"
	case word == "y", word == "yr", word == "year", word == "years":
		return itoa(int64(n)*365) + "d"
	case word == "" && s != "":
		return count + "s"
	}
	return ""
}

// limitMeant is the limit that s most likely stands for, as "10 req/s" and
// "10 requests per minute" do; "" where there is none.
func limitMeant(s string) string {
	count, rest := cutDigits(strings.ToLower(strings.TrimSpace(s)))
	if count == "" {
		return ""
	}
	rest = strings.TrimSpace(rest)
	for _, noun := range []string{"requests", "request", "reqs", "req", "hits", "hit", "calls", "r"} {
		if after, found := strings.CutPrefix(rest, noun); found {
			rest = strings.TrimSpace(after)
			break
		}
	}
	for _, by := range []string{"/", "per", "in", "every", ":", "@"} {
		after, found := strings.CutPrefix(rest, by)
		if !found {
			continue
		}
		after = strings.TrimSpace(after)
		if p, known := periodWord(after); known && !p.loose {
			return count + "/" + p.name
		}
		if ns, err := ParseDuration(after); err == nil && ns > 0 {
			return count + "/" + after
		}
		if d := durationMeant(after); d != "" {
			return count + "/" + d
		}
	}
	return ""
}
