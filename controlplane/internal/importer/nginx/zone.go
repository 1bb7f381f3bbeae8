package nginx

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/nginxkey"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// zone is what a limit_req_zone or a limit_conn_zone says.
type zone struct {
	draft.Numbers // a rate or a concurrency, without what each limit says
	name          string
	key           string
	capacity      uint64 // 0 = the default
	at            source.Place
	used          []draft.Numbers // by its limits, each once
}

// readZone reads limit_req_zone KEY zone=NAME:SIZE rate=RATE, or limit_conn_zone without a rate.
func (n *reader) readZone(d *nginxconf.Directive) {
	z := &zone{key: d.Arg(0), at: nginxkey.PlaceOf(d)}
	kind := strings.TrimSuffix(d.Name, "_zone")
	hasRate := false
	for _, arg := range d.Args[min(1, len(d.Args)):] {
		switch name, value, _ := strings.Cut(arg, "="); {
		case name == "zone":
			var size string
			z.name, size, _ = strings.Cut(value, ":")
			z.capacity = capacityOf(size)
		case name == "rate" && kind == limitReq:
			hasRate = true
			n.readRate(z, value)
		case arg == "sync":
			n.Note(z.at, "sync: each Envoy counts for itself, and --scope cluster makes rules that count over all")
		default:
			n.Fail(z.at, "unknown parameter "+strconv.Quote(arg))
		}
	}
	if kind == limitConn {
		z.Numbers = draft.Concurrency(0) // each limit says its own
	}
	switch id := kind + " " + z.name; {
	case z.name == "" || z.key == "":
		n.Fail(z.at, "needs a key and zone=NAME:SIZE")
	case n.zones[id] != nil:
		n.Fail(z.at, "there is a zone "+z.name+" already")
	case kind == limitReq && !hasRate:
		n.Fail(z.at, needsRate)
	default:
		n.zones[id] = z
	}
}

const needsRate = "needs a rate of at least 1r/m"

// readRate reads a rate such as 10r/s or 30r/m.
func (n *reader) readRate(z *zone, text string) {
	per := "1s"
	number, ok := strings.CutSuffix(text, "r/s")
	if !ok {
		per = "1m"
		number, ok = strings.CutSuffix(text, "r/m")
	}
	requests, err := strconv.ParseUint(number, 10, 32)
	switch {
	case !ok || err != nil:
		n.Fail(z.at, "rate must be a number of requests such as 10r/s or 30r/m, not "+strconv.Quote(text))
	case requests == 0:
		n.Fail(z.at, needsRate)
	}
	z.Numbers = draft.TokenBucket(requests, per, 0) // each limit says its own burst
}

// keysPerMiB is how many keys nginx has room for in a MiB of a zone, each in 128 bytes.
const keysPerMiB = 8192

// capacityOf is the number of keys of a zone; 0 if the default of a policy has as much room.
func capacityOf(size string) uint64 {
	number, isMega := strings.CutSuffix(strings.ToLower(size), "m")
	mega, err := strconv.ParseUint(number, 10, 32)
	if keys := mega * keysPerMiB; err == nil && isMega && keys > policy.DefaultCapacity {
		return min(keys, policy.MaxCapacity)
	}
	return 0
}

// zoneOf is the zone that a limit names; nil, and a problem, if there is none of that kind.
func (n *reader) zoneOf(kind string, d *nginxconf.Directive) *zone {
	name := d.Arg(0)
	if kind == limitReq {
		name = ""
		for _, arg := range d.Args {
			if zone, ok := strings.CutPrefix(arg, "zone="); ok {
				name = zone
			}
		}
	}
	z := n.zones[kind+" "+name]
	if z == nil {
		n.Fail(nginxkey.PlaceOf(d), fmt.Sprintf("there is no %s_zone %q: give the file that has it too", kind, name))
	}
	return z
}

// noteZones notes the zones that no limit uses, or limits with other numbers than each other's. It goes by their
// names, so that the notes of one line always come in one order.
func (n *reader) noteZones() {
	for _, id := range slices.Sorted(maps.Keys(n.zones)) {
		z := n.zones[id]
		switch {
		case len(z.used) == 0:
			n.Note(z.at, "no limit uses the zone "+z.name)
		case len(z.used) > 1:
			n.Note(z.at, "nginx counts all requests of the zone "+z.name+" together. Here those with another burst or "+
				"limit count apart.")
		}
	}
}
