package wording

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// meant are words of other rate limiters, each with the names that a policy may
// have for it.
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
	// key parts
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
	{"global", []string{"cluster"}},
	{"shared", []string{"cluster"}},
	{"distributed", []string{"cluster"}},
	{"local", []string{"proxy"}},
	{"node", []string{"proxy"}},
	{"draft-10", []string{"ietf"}},
	{"x-rate-limit", []string{"x-ratelimit"}},
}

// elsewhere are fields at the top of a file that show it is another program's.
var elsewhere = []struct{ field, message string }{
	{"apiVersion", "a policy is no Kubernetes object: its fields stand at the top of the file"},
	{"descriptors", "this is how envoyproxy/ratelimit is configured: sluice import envoy-ratelimit makes a policy of it"},
}

// foreign says whose file has this field at its top.
func foreign(field string) string {
	for _, e := range elsewhere {
		if e.field == field {
			return e.message
		}
	}
	return ""
}

// likely is the word that s most likely stands for, by its spelling or its
// meaning; "" where none does.
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
			if slices.Contains(words, name) {
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

// Meant is the field that an unknown one most likely stands for, "" where there
// is none.
func Meant(p *policy.Problem) string {
	known, name := fieldsOf(p.Want.Of), p.Args[0]
	near := nearest(name, known)
	if near == "" && misplaced(name) == "" {
		near = likely(name, known)
	}
	return near
}

func unknownField(p *policy.Problem) string {
	known, name := fieldsOf(p.Want.Of), p.Args[0]
	message := "unknown field: "
	near := Meant(p)
	switch {
	case near == "headers" && p.Want.Of == "match":
		return message + "did you mean " + quote(near) + "? " + strings.ToUpper(headersHint[:1]) + headersHint[1:]
	case near != "":
		return message + "did you mean " + quote(near) + "?"
	}
	if home := misplaced(name); home != "" {
		return message + "it belongs " + home
	}
	if program := foreign(name); p.Args[1] == "" && program != "" {
		return message + program
	}
	if len(known) > 0 {
		return message + "the fields here are " + strings.Join(known, ", ")
	}
	return message + "there is none here"
}

// fieldsOf are the names of an object's fields.
func fieldsOf(object string) (names []string) {
	for _, o := range policy.Schema() {
		for i := range o.Fields {
			if o.Name == object {
				names = append(names, o.Fields[i].Name)
			}
		}
	}
	return names
}

// homes are the objects whose fields people put in the wrong place.
var homes = []struct{ object, place string }{
	{"policy", "at the top of the policy"},
	{"quota", "in quota, at the top of the policy"},
	{"rule", "in a rule, an item of rules"},
	{"match", "in match"},
	{"limit", "in a limit, an item of limits"},
	{"key", "in a part of a key, an item of key"},
}

// misplaced says where a field belongs that is not known here.
func misplaced(name string) string {
	for _, h := range homes {
		if slices.Contains(fieldsOf(h.object), name) {
			return h.place
		}
	}
	return ""
}
