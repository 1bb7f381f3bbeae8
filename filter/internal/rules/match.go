package rules

import (
	"net/netip"
	"slices"
	"sort"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Match is a compiled policy.Match: predicates in the order of their cost. A value that a client
// may spell in several ways counts against the client: under "match" it is enough that one
// spelling holds, under "exempt" all must hold. If the call that would tell them apart fails, the
// request matches, and is not exempt.
type Match struct {
	exempt  bool // all spellings must hold
	methods []string
	hosts   []policy.Pattern
	paths   []policy.Pattern
	clients addresses
	headers []headerMatch
}

type headerMatch struct {
	number int // see request.Request
	value  policy.Pattern
}

// Compile compiles an entry of a rule's "match", or one that holds only if all spellings do, as of "exempt".
func Compile(r *request.Request, m *policy.Match, exempt bool) Match {
	out := Match{exempt: exempt, methods: m.Methods, paths: m.Paths, clients: newAddresses(m.ClientIPs)}
	for _, host := range m.Hosts {
		if suffix, ok := strings.CutPrefix(host, "*"); ok {
			out.hosts = append(out.hosts, policy.Pattern{Kind: policy.Suffix, Text: suffix})
		} else {
			out.hosts = append(out.hosts, policy.Pattern{Kind: policy.Exact, Text: host})
		}
	}
	for _, h := range m.Headers {
		out.headers = append(out.headers, headerMatch{r.HeaderNumber(h.Name), h.Value})
	}
	return out
}

// IsEmpty reports whether every request matches.
func (m *Match) IsEmpty() bool {
	return len(m.methods)+len(m.hosts)+len(m.paths)+len(m.clients)+len(m.headers) == 0
}

// Holds reports whether the request matches. It first asks the predicates on values that have
// been read, because these need no call into the proxy: often one of them says no. Each is asked once: to ask about one
// value reads no value of another (TestToAskAboutAValueReadsNoOther), because a policy names a header once in a match.
func (m *Match) Holds(r *Request) bool {
	return m.holdsOf(r, true) && m.holdsOf(r, false)
}

// holdsOf asks the predicates on values that have been read, or those on values
// that have not.
func (m *Match) holdsOf(r *Request, read bool) bool {
	if len(m.methods) > 0 && r.KnowsMethod() == read && !m.method(r) {
		return false
	}
	if len(m.hosts) > 0 && r.KnowsHost() == read && !m.holdsForReadings(m.hosts, r, r.Hosts()) {
		return false
	}
	if len(m.paths) > 0 && r.KnowsPath() == read && !m.holdsForReadings(m.paths, r, r.Paths()) {
		return false
	}
	if len(m.clients) > 0 && r.KnowsClient() == read {
		if ip, present := r.Client(); !present || !m.clients.contains(ip) {
			return false
		}
	}
	for i := range m.headers {
		h := &m.headers[i]
		if r.KnowsJoinedHeader(h.number) == read && !m.header(h, r) {
			return false
		}
	}
	return true
}

// method takes "get" for GET, as some upstreams do, unless that would exempt the
// request.
func (m *Match) method(r *Request) bool {
	method, _ := r.Method()
	if slices.Contains(m.methods, method) {
		return true
	}
	for i := 0; i < len(m.methods) && !m.exempt; i++ {
		if strings.EqualFold(m.methods[i], method) {
			return true
		}
	}
	return false
}

// header asks about all values of a header.
func (m *Match) header(h *headerMatch, r *Request) bool {
	if m.exempt {
		return m.exemptHeader(h, r)
	}
	return m.matchHeader(h, r)
}

// matchHeader reports whether one value of the header holds, or all of them as the proxy joins
// them with commas: an upstream may read them as one.
func (m *Match) matchHeader(h *headerMatch, r *Request) bool {
	joined, present := r.JoinedHeader(h.number)
	if m.holds(&h.value, joined, present, r) {
		return true
	}
	if !mayHaveSeveral(joined) {
		return false
	}
	values := r.Values(h.number)
	for _, value := range values {
		if m.holds(&h.value, value, true, r) {
			return true
		}
	}
	return len(values) == 0 // the call failed
}

// exemptHeader reports whether every value of the header holds.
func (m *Match) exemptHeader(h *headerMatch, r *Request) bool {
	joined, present := r.JoinedHeader(h.number)
	if !mayHaveSeveral(joined) {
		return m.holds(&h.value, joined, present, r)
	}
	values := r.Values(h.number)
	for _, value := range values {
		if !m.holds(&h.value, value, true, r) {
			return false
		}
	}
	return len(values) > 0 // else the call failed
}

// mayHaveSeveral reports whether a joined header may have several values. A single value may have
// a comma too; a further call then gets each value by itself.
func mayHaveSeveral(joined string) bool { return strings.IndexByte(joined, ',') >= 0 }

// holdsForReadings reports whether one of the patterns holds for one reading of a value or, under
// "exempt", for each reading.
func (m *Match) holdsForReadings(patterns []policy.Pattern, r *Request, readings []string) bool {
	for _, value := range readings {
		holds := m.anyPatternHolds(patterns, r, value)
		if m.exempt && !holds {
			return false
		}
		if !m.exempt && holds {
			return true
		}
	}
	return m.exempt && len(readings) > 0
}

func (m *Match) anyPatternHolds(patterns []policy.Pattern, r *Request, value string) bool {
	for i := range patterns {
		if m.holds(&patterns[i], value, true, r) {
			return true
		}
	}
	return false
}

// holds asks one pattern. It sets tooLong in the request if the value was too long to be read.
func (m *Match) holds(p *policy.Pattern, value string, present bool, r *Request) bool {
	holds, tooLong := p.Holds(value, present, !m.exempt)
	r.tooLong = r.tooLong || tooLong
	return holds
}

// addresses is a set of networks as ranges. They are sorted and do not overlap, so that a list
// of thousands costs a dozen comparisons.
type addresses []addressRange

type addressRange struct{ first, last netip.Addr }

func newAddresses(networks []netip.Prefix) addresses {
	var list addresses
	for _, n := range networks {
		list = append(list, addressRange{n.Addr(), lastOf(n)})
	}
	sort.Slice(list, func(i, j int) bool { return list[i].first.Less(list[j].first) })
	out := list[:0]
	for _, r := range list {
		if n := len(out); n > 0 && r.first.Compare(out[n-1].last) <= 0 {
			if r.last.Compare(out[n-1].last) > 0 {
				out[n-1].last = r.last
			}
			continue
		}
		out = append(out, r)
	}
	return out
}

// lastOf returns the highest address of a network.
func lastOf(n netip.Prefix) netip.Addr {
	b := n.Addr().AsSlice()
	for bit := n.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 1 << (7 - bit%8)
	}
	ip, _ := netip.AddrFromSlice(b)
	return ip
}

func (a addresses) contains(ip netip.Addr) bool {
	at, exact := slices.BinarySearchFunc(a, ip, func(r addressRange, ip netip.Addr) int {
		return r.first.Compare(ip)
	})
	return exact || at > 0 && ip.Compare(a[at-1].last) <= 0
}
