package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// fieldCase shows what a field of the policy does: the same requests get other
// answers once it says something else, or is gone.
type fieldCase struct {
	// rules are as in a policy. ⟦with|without⟧ is what the field says, and what
	// stands there otherwise; $ is the field's name, and @ a match of the host
	// that the requests are for.
	rules string
	see   string // a header of the answer, or "" = its status
	steps []fieldStep
}

// fieldStep is a request, such as "POST /x?y=1 x-user-id=alice", ":host=a" or
// ":from=127.0.0.2" among its headers, and what is seen with the field and
// without: a status or a header's value, or a part of it behind "~".
type fieldStep struct{ request, with, without string }

var fieldText = regexp.MustCompile(`⟦([^|⟧]*)\|?([^⟧]*)⟧`)

func hostOf(field string) string { return strings.ReplaceAll(field, "_", "-") + ".example" }

// text is the rules with the field, or without.
func (c fieldCase) text(field string, with bool) string {
	text := strings.NewReplacer("$", field, "@", "hosts: ["+hostOf(field)+"]", "FAR", far).Replace(strings.Trim(c.rules, "\n"))
	says := "$2"
	if with {
		says = "$1"
	}
	text = fieldText.ReplaceAllString(text, says)
	return strings.NewReplacer(", , ", ", ", "{, ", "{").Replace(text) + "\n"
}

func (c fieldCase) walk(t *testing.T, p *proxy, field string, with bool) {
	t.Helper()
	for i, s := range c.steps {
		want := s.without
		if with {
			want = s.with
		}
		if want == "" {
			continue
		}
		seen := p.see(t, "http://"+p.address, s.request, hostOf(field), c.see)
		at := fmt.Sprintf("%s, with it %t, step %d: %s", field, with, i, s.request)
		if part, ok := strings.CutPrefix(want, "~"); ok {
			require.Contains(t, seen, part, at)
		} else {
			require.Equal(t, want, seen, at)
		}
	}
}

// see sends a request and returns what the client is to see of the answer.
func (p *proxy) see(t *testing.T, base, request, host, what string) string {
	t.Helper()
	words := strings.Fields(request)
	method := http.MethodGet
	if !strings.HasPrefix(words[0], "/") {
		method, words = words[0], words[1:]
	}
	r, err := http.NewRequestWithContext(t.Context(), method, base+words[0], nil)
	require.NoError(t, err)
	r.Host = host
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case ":host":
			r.Host = value
		case ":from":
			transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(value)}}
				return d.DialContext(ctx, network, address)
			}
		case ":wait":
			wait, err := time.ParseDuration(value)
			require.NoError(t, err)
			time.Sleep(wait)
		default:
			r.Header.Add(name, value)
		}
	}
	res, err := transport.RoundTrip(r)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	switch what {
	case "":
		return strconv.Itoa(res.StatusCode)
	case "body":
		return string(body)
	}
	return strings.Join(res.Header.Values(what), ", ")
}

// TestFields shows, on every proxy, that each field does what it says: two
// policies differ in nothing but the fields.
func TestFields(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		for _, with := range []bool{true, false} {
			text := "version: 1\nheaders: ietf\nrules:\n"
			for field, c := range fieldCases {
				text += c.text(field, with)
			}
			s := serve(t, d, text)
			for field, c := range fieldCases {
				c.walk(t, s.proxy, field, with)
			}
		}
	})
}

// Every field of the policy has a scenario on every proxy, and no scenario is
// one that would be the same without its field.
func TestEveryFieldHasAScenario(t *testing.T) {
	fields := map[string]bool{}
	for _, o := range policy.Schema() {
		for _, f := range o.Fields {
			field := o.Name + "." + f.Name
			fields[field] = true
			c, listed := fieldCases[field]
			require.True(t, listed || fieldScenarios[field] != nil, "%s has no scenario: add one to fieldCases or fieldScenarios", field)
			if !listed {
				continue
			}
			require.Nil(t, fieldScenarios[field], "%s has two", field)
			require.NotEqual(t, c.text(field, true), c.text(field, false), field)
			differs := false
			for _, s := range c.steps {
				differs = differs || s.with != s.without
			}
			require.True(t, differs, "%s: nothing is seen of the field", field)
			require.Contains(t, c.text(field, true), f.Name, "it is about another field")
		}
	}
	require.Len(t, fields, len(fieldCases)+len(fieldScenarios), "a scenario is of no field")
}
