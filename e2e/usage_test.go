package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// modelAnswer is an answer of a model's API, and what is to be read of it.
type modelAnswer struct {
	Name, ContentType string
	Body              []byte
	Usage             struct {
		Input, Output           int64
		InputKnown, OutputKnown bool
		TextEvents, TextBytes   int64
	}
}

// modelAnswers are those on which the filter's scanner is tested.
func modelAnswers(t *testing.T) (list []modelAnswer) {
	text, err := os.ReadFile(filepath.Join(buildtest.Root(), "filter/internal/usage/testdata/answers.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &list))
	require.Greater(t, len(list), 20)
	return list
}

const (
	modelHeld    = 10  // by each request
	questionSize = 400 // bytes
)

// charge is what the answer costs: what it says, else the estimate.
func (a *modelAnswer) charge() (input, output int64, known bool) {
	u := &a.Usage
	if input, output = u.Input, u.Output; !u.InputKnown {
		input = max(input, questionSize/4)
	}
	if !u.OutputKnown {
		output = max(output, u.TextEvents, u.TextBytes/4)
	}
	return input, output, u.InputKnown && u.OutputKnown
}

// models is an upstream that speaks the APIs of models. A request's headers say which answer
// it gets, in chunks of how many bytes, and after how many it waits until the client has gone.
type models struct {
	*httptest.Server
	answers map[string]*modelAnswer
	arrived sync.Map // by the client's name, channels that are closed when its request is here
}

func startModels(t *testing.T, answers []modelAnswer) *models {
	m := &models{answers: map[string]*modelAnswer{}}
	for i := range answers {
		m.answers[answers[i].Name] = &answers[i]
	}
	m.Server = httptest.NewServer(m)
	t.Cleanup(m.Close)
	return m
}

func (m *models) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	a := m.answers[r.Header.Get("x-answer")]
	if a == nil {
		return
	}
	if arrived, waits := m.arrived.Load(r.Header.Get("x-user-id")); waits {
		close(arrived.(chan struct{}))
	}
	stop, stops := number(r, "x-stop")
	if stops && stop == 0 {
		<-r.Context().Done()
		return
	}
	body := a.Body
	if pad, padded := number(r, "x-pad"); padded {
		body = append(bytes.Repeat([]byte{'\n'}, pad), body...)
	}
	if stops {
		body = body[:stop]
	}
	w.Header().Set("content-type", a.ContentType)
	w.Header().Set("x-accepted", r.Header.Get("accept-encoding"))
	if encoding := r.Header.Get("x-encoding"); encoding != "" {
		w.Header().Set("content-encoding", encoding)
	}
	size, inChunks := number(r, "x-chunk")
	if !inChunks {
		size = len(body)
		if !stops {
			w.Header().Set("content-length", strconv.Itoa(size))
		}
	}
	for from := 0; from < len(body); from += size {
		_, _ = w.Write(body[from:min(from+size, len(body))])
		w.(http.Flusher).Flush()
	}
	if stops {
		<-r.Context().Done()
	}
}

func number(r *http.Request, name string) (n int, ok bool) {
	n, err := strconv.Atoi(r.Header.Get(name))
	return n, err == nil
}

// hangUp has a client leave after so many bytes of its answer.
func (m *models) hangUp(p *proxy, path, answer, user string, after int) error {
	ctx, leave := context.WithTimeout(context.Background(), time.Minute)
	defer leave()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.address+path, strings.NewReader(strings.Repeat("x", questionSize)))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{"x-answer": answer, "x-user-id": user, "x-stop": strconv.Itoa(after)} {
		r.Header.Set(name, value)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	if after == 0 {
		arrived := make(chan struct{})
		m.arrived.Store(user, arrived)
		go func() {
			<-arrived
			leave()
		}()
	}
	res, err := transport.RoundTrip(r)
	if after == 0 {
		if err == nil {
			return fmt.Errorf("an answer of status %d, where none should come", res.StatusCode)
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.ReadFull(res.Body, make([]byte, after))
	return err
}

// used waits until nothing is held of a counter, and returns what is used.
func used(t *testing.T, p *proxy, counter string) (units int64) {
	t.Helper()
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
  - {name: bounded, match: {paths: [/bounded]}, limits: [1000/` + far + `], cost: 100, settle: {to: tokens}}
`

// modelChunks are the sizes of an answer's chunks, and how many empty lines come before it.
var modelChunks = []struct {
	name, size, pad string
}{{"whole", "", ""}, {"of 1 byte", "1", ""}, {"of 700 bytes", "700", "100000"}, {"of 64 KiB", "65536", "200000"}}

// TestModels: answers of each API are charged what they say, whole and in chunks of any size,
// and those that say nothing what is estimated. Who hangs up pays, too.
func TestModels(t *testing.T) {
	answers := modelAnswers(t)
	everyEnvoy(t, func(t *testing.T, d driver) {
		m := startModels(t, answers)
		p := d.start(t, proxyOptions{policy: modelPolicy, upstream: m.URL})
		t.Run("charged", func(t *testing.T) { m.charged(t, p) })
		t.Run("hung up", func(t *testing.T) { m.hungUp(t, p) })
		t.Run("encoded", func(t *testing.T) { m.encoded(t, p) })
		t.Run("bounded", func(t *testing.T) { m.bounded(t, p) })
	})
}

func (m *models) charged(t *testing.T, p *proxy) {
	for name, a := range m.answers {
		for _, c := range modelChunks {
			if c.pad != "" && strings.Contains(a.ContentType, "amazon") {
				c.pad = "" // frames have no empty ones
			}
			user := strings.ReplaceAll(name+"-"+c.name, " ", "_")
			res, body := p.get(t, "/v1", ":method", "POST", ":body", strconv.Itoa(questionSize),
				"x-answer", name, "x-user-id", user, "x-chunk", c.size, "x-pad", c.pad)
			require.Equal(t, 200, res.StatusCode)
			require.Equal(t, string(a.Body), strings.TrimLeft(body, "\n"), "it is not changed")
			input, output, known := a.charge()
			total := input + output
			if !known {
				total = max(total, modelHeld)
			}
			require.Equal(t, total, used(t, p, "tokens&key="+user), "%s, %s", name, c.name)
			if a.Usage.InputKnown {
				require.Equal(t, input, used(t, p, "input&key="+user), "%s, %s", name, c.name)
			}
			if a.Usage.OutputKnown {
				require.Equal(t, output, used(t, p, "output&key="+user), "%s, %s", name, c.name)
			}
		}
	}
}

func (m *models) hungUp(t *testing.T, p *proxy) {
	for name, a := range m.answers {
		input, output, _ := a.charge()
		most := max(input, questionSize/4) + max(output, a.Usage.TextEvents, a.Usage.TextBytes/4)
		last := int64(0)
		for i, after := range []int{0, len(a.Body) / 2, len(a.Body)} {
			user := strings.ReplaceAll(fmt.Sprint(name, "-", i), " ", "_")
			require.NoError(t, m.hangUp(p, "/v1", name, user, after), user)
			paid := used(t, p, "tokens&key="+user)
			require.Positive(t, paid, "%s, after %d bytes", name, after)
			if after < len(a.Body) && !bytes.Contains(a.Body[:after], []byte("sage")) { // in usage or usageMetadata, which some APIs repeat
				require.GreaterOrEqual(t, paid, int64(modelHeld), "%s, after %d bytes", name, after)
			}
			require.LessOrEqual(t, paid, max(most, int64(questionSize+len(a.Body))/4), "%s, after %d bytes", name, after)
			if after == 0 {
				require.EqualValues(t, questionSize/4, paid, name)
			}
			last = paid
		}
		if n := len(a.Body); n > 0 && a.Usage.InputKnown && a.Usage.OutputKnown && a.ContentType != "application/json" {
			require.Equal(t, input+output, last, "%s: all of it was there", name)
		}
	}
}

// encoded: upstreams are not asked for encodings, and answers that have one are estimated.
func (m *models) encoded(t *testing.T, p *proxy) {
	before, _ := p.metric(t, "rate_limit_unread_encoded_total", "tokens")
	a := m.answers["chat"]
	res, _ := p.get(t, "/v1", ":method", "POST", ":body", strconv.Itoa(questionSize),
		"x-answer", a.Name, "x-user-id", "encoded", "x-encoding", "br", "accept-encoding", "br, gzip")
	require.Equal(t, 200, res.StatusCode)
	require.Empty(t, res.Header.Get("x-accepted"))
	require.EqualValues(t, questionSize/4+len(a.Body)/4, used(t, p, "tokens&key=encoded"))
	eventually(t, 5*time.Second, "the metric", func() bool {
		n, _ := p.metric(t, "rate_limit_unread_encoded_total", "tokens")
		return n == before+1
	})
}

// bounded: where the cost is the most that an answer takes, no window has ever more.
func (m *models) bounded(t *testing.T, p *proxy) {
	const takes = 98 // tokens, of the 100 that are held
	statuses := make(chan int)
	for range 200 {
		go func() {
			res, _, err := p.try("/bounded", ":method", "POST", "x-answer", "Converse", "x-chunk", "50")
			if err != nil {
				statuses <- 0
				return
			}
			statuses <- res.StatusCode
		}()
	}
	admitted := 0
	for i := range 200 {
		if status := <-statuses; status == 200 {
			admitted++
		} else {
			require.Equal(t, 429, status)
		}
		if i%20 == 0 {
			got := p.operate(t, "get", "rule=bounded")
			require.LessOrEqual(t, got.Value+int64(*got.Held), int64(1000))
		}
	}
	for p.status(t, "/bounded", "x-answer", "Converse") == 200 {
		admitted++
	}
	require.Equal(t, 10, admitted)
	require.EqualValues(t, 10*takes, used(t, p, "bounded"))
}
