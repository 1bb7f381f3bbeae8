package e2e

import (
	"bytes"
	"cmp"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

type modelAnswer buildtest.ModelAnswer

const (
	modelHeld    = 10  // by each request
	questionSize = 400 // bytes
)

// charge is what the answer costs: what it says, else the estimate.
func (a *modelAnswer) charge() (input, output int64, known bool) {
	if a.Total > 0 {
		return 0, a.Total, true // however that divides
	}
	if input, output = a.Input, a.Output; !a.InputKnown {
		input = max(input, questionSize/4)
	}
	if !a.OutputKnown {
		output = max(output, a.TextEvents, a.TextBytes/4)
	}
	return input, output, a.InputKnown && a.OutputKnown
}

// models is an upstream that speaks the APIs of models. A request's headers say which answer
// it gets, after how many empty lines and in chunks of how many bytes.
type models map[string]*modelAnswer

func (m models) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	a := m[r.Header.Get("x-answer")]
	if a == nil {
		return
	}
	number := func(name string) (n int) {
		n, _ = strconv.Atoi(r.Header.Get(name))
		return n
	}
	body := append(bytes.Repeat([]byte{'\n'}, number("x-pad")), a.Body...)
	w.Header().Set("content-type", a.ContentType)
	size := number("x-chunk")
	if size == 0 {
		w.Header().Set("content-length", strconv.Itoa(len(body)))
	}
	size = cmp.Or(size, len(body))
	w.(http.Flusher).Flush()
	for from := 0; from < len(body); from += size {
		_, _ = w.Write(body[from:min(from+size, len(body))])
		w.(http.Flusher).Flush()
	}
}

// used waits until nothing is held of a counter, and returns what is used.
func used(t *testing.T, p *proxy, counter string) (units int64) {
	eventually(t, 5*time.Second, "the holds of "+counter+" to end", func() bool {
		got := p.operate(t, "get", "rule="+counter)
		require.NotNil(t, got.Held)
		units = got.Value
		return *got.Held == 0
	})
	return units
}

const modelPolicy = `
version: 1
` + managed + `rules:
  - {name: tokens, match: {paths: [/v1]}, key: [{header: x-user-id}], limits: [10000000/` + far + `], cost: 10, settle: {to: tokens, when: {status: ["2xx"]}}}
  - {name: input, match: {paths: [/v1]}, key: [{header: x-user-id}], limits: [10000000/` + far + `], cost: 10, settle: {to: input_tokens}}
  - {name: output, match: {paths: [/v1]}, key: [{header: x-user-id}], limits: [10000000/` + far + `], cost: 10, settle: {to: output_tokens}}
`

// modelChunks are the sizes of an answer's chunks, and how many empty lines come before it.
var modelChunks = []struct {
	name, size, pad string
}{{"whole", "", ""}, {"of 1 byte", "1", ""}, {"of 700 bytes", "700", "100000"}, {"of 64 KiB", "65536", "200000"}}

// TestModels: answers of each API are charged what they say, whole and in chunks of any size,
// and those that say nothing what is estimated.
func TestModels(t *testing.T) {
	t.Parallel()
	m := models{}
	for _, a := range buildtest.ModelAnswers(t) {
		m[a.Name] = (*modelAnswer)(&a)
	}
	everyEnvoy(t, func(t *testing.T, d driver) {
		upstream := httptest.NewServer(m)
		defer upstream.Close()
		p := d.start(t, proxyOptions{policy: modelPolicy, upstream: upstream.URL})
		for name, a := range m {
			for _, c := range modelChunks {
				if strings.Contains(a.ContentType, "amazon") {
					c.pad = "" // frames have no empty ones
				}
				m.charged(t, p, name, c.name, "x-chunk", c.size, "x-pad", c.pad)
			}
		}
	})
}

func (m models) charged(t *testing.T, p *proxy, name, chunks string, headers ...string) {
	a, user := m[name], strings.ReplaceAll(name+"-"+chunks, " ", "_")
	res, body := p.get(t, "/v1", append(headers, ":method", http.MethodPost, ":body", strconv.Itoa(questionSize),
		"x-answer", name, "x-user-id", user, "connection", "close")...)
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, a.Body, strings.TrimLeft(body, "\n"), "it is not changed")
	input, output, known := a.charge()
	total := input + output
	if !known {
		total = max(total, modelHeld)
	}
	require.Equal(t, total, used(t, p, "tokens&key="+user), user)
	if a.InputKnown {
		require.Equal(t, input, used(t, p, "input&key="+user), user)
	}
	if a.OutputKnown {
		require.Equal(t, output, used(t, p, "output&key="+user), user)
	}
}
