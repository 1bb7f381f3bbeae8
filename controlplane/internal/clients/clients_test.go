package clients

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

// asked is a call, without the timeout.
type asked struct {
	path string
	form url.Values
}

// server answers each call with what answers has for its path and rule, and keeps the calls.
func server(t *testing.T, answers map[string]string) (*Server, *[]asked) {
	t.Helper()
	var calls []asked
	return &Server{Post: func(_ context.Context, c *Call) error {
		form := url.Values{}
		if c.Path != "/v1/explain" {
			var err error
			form, err = url.ParseQuery(c.Body)
			require.NoError(t, err)
			form.Del("timeout")
		}
		calls = append(calls, asked{c.Path, form})
		answer, ok := answers[strings.TrimSpace(c.Path+" "+form.Get("rule"))]
		require.True(t, ok, "%s %s", c.Path, form)
		require.NoError(t, json.Unmarshal([]byte(answer), c.Answer))
		require.True(t, c.IsWhole(), answer)
		return nil
	}}, &calls
}

// What the API answers: rules that are explained, and counters.
const (
	ofAlice = `"key":[{"part":"header x-user-id","value":"alice"}]`

	user = `{"rule":"user","outcome":"matches","allowed":true,"cost":3,"hash":"h1",` + ofAlice + `}`

	token = `{"rule":"token","outcome":"matches","allowed":true,"cost":1,"hash":"h2",` +
		`"key":[{"part":"header authorization","value":"s3cret","hidden":true}]}`

	shared = `{"rule":"shared","outcome":"matches","allowed":true,"cost":1,"hash":"h3","common":true}`

	posts = `{"rule":"posts","outcome":"method","why":"methods: GET is not one of POST",` +
		`"failing":"methods","wanted":"POST","hash":"h4",` + ofAlice + `}`

	paths = `{"rule":"paths","outcome":"matches","allowed":true,"cost":1,"hash":"h5",` +
		`"key":[{"part":"path","value":"/"}]}`

	tenants = `{"rule":"tenants","outcome":"matches","allowed":true,"cost":1,"hash":"h6",` +
		`"key":[{"part":"path segment 2","value":null}]}`

	lacks = `{"rule":"lacks","outcome":"no_key","why":"missing_key: no cookie","no_key":"the request has no cookie"}`

	strict = `{"rule":"strict","outcome":"matches","allowed":false,"cost":1,"reason":"missing_key","mode":"enforced",` +
		`"no_key":"the request has no cookie"}`

	off = `{"rule":"off","outcome":"off","why":"mode: off"}`

	explained = `{"proxies":[{"proxy":"edge-1","allowed":true,"rules":[` +
		user + `,` + token + `,` + shared + `,` + posts + `,` + paths + `,` + tenants + `,` +
		lacks + `,` + strict + `,` + off + `]},
		{"proxy":"edge-2","allowed":true,"rules":[` + user + `]},
		{"proxy":"edge-3","error":"gone"}]}`

	window = `"windows":[{"limit":10,"per_ms":60000,"used":10,"remaining":0,"reset_ms":5}]`

	denies = `"allowed":false,"retry_after_ms":5,"rules":[{"rule":"r","key":[],"mode":"enforced","allowed":false,` +
		`"reason":"limit",` + window + `}]`

	allows = `"allowed":true,"rules":[{"rule":"r","key":[],"mode":"enforced","allowed":true,` + window + `}]`

	isThere = `{"proxies":[{"proxy":"edge-1","value":1}]}`
)

var alice = &simulate.Request{Headers: map[string]simulate.Values{"x-user-id": {"alice"}}}

// TestKeysOfAClient: equal keys of several proxies are one, credentials are hidden but can be
// reset, and a default of the described request is no fact about the client.
func TestKeysOfAClient(t *testing.T) {
	s, _ := server(t, map[string]string{"/v1/explain": explained})
	keys, failed, err := Keys(t.Context(), s, alice)
	require.NoError(t, err)
	require.Len(t, failed, 1)
	require.Equal(t, "edge-3", failed[0].Proxy)
	byRule := map[string]*Key{}
	for _, k := range keys {
		require.NotContains(t, byRule, k.Rule)
		byRule[k.Rule] = k
	}
	require.Len(t, byRule, 8, "all but the rule that is off")
	require.Equal(t, map[string]string{"edge-1": "h1", "edge-2": "h1"}, byRule["user"].hashes)
	require.Equal(t, `header x-user-id = "alice"`, byRule["user"].Text())
	require.Equal(t, "header authorization = hidden: a credential", byRule["token"].Text())
	require.Nil(t, byRule["token"].Key[0].Value)
	require.Equal(t, []string{"s3cret"}, byRule["token"].Parts)
	require.Equal(t, "methods POST", byRule["posts"].Only)
	require.Empty(t, byRule["posts"].Why)
	require.Equal(t, "the description does not give path", byRule["paths"].NoKey)
	require.Equal(t, "the description does not give path", byRule["tenants"].NoKey)
	require.Equal(t, "the request has no cookie", byRule["lacks"].NoKey)
	require.Empty(t, byRule["lacks"].Why, "NoKey says it")

	given := *alice
	given.Method = "GET"
	keys, _, err = Keys(t.Context(), s, &given)
	require.NoError(t, err)
	for _, k := range keys {
		if k.Rule == "posts" {
			require.Equal(t, "methods: GET is not one of POST", k.Why)
		}
	}
}

// TestFindCountsNothing: it asks for each key of the client by peek, with the cost of the
// described request, and takes the answers of the proxies that have the key.
func TestFindCountsNothing(t *testing.T) {
	answer := `{"proxies":[{"proxy":"edge-1",` + denies + `},{"proxy":"edge-2",` + allows + `},` +
		`{"proxy":"edge-4",` + denies + `}]}`
	allow := `{"proxies":[{"proxy":"edge-1",` + allows + `}]}`
	s, calls := server(t, map[string]string{
		"/v1/explain": explained, "/v1/counters/peek user": answer, "/v1/counters/peek token": allow,
		"/v1/counters/peek shared": allow, "/v1/counters/peek posts": allow,
		"/v1/counters/top": `{"proxies":[{"proxy":"edge-1","denials":[{"rule":"user","keys":[{"hash":"h1","denied":4}]}]}]}`,
	})
	report, err := Find(t.Context(), s, alice)
	require.NoError(t, err)
	require.Equal(t, []string{"user", "strict"}, report.DeniedBy)
	require.True(t, report.Found())
	require.True(t, report.IsPartial(), "edge-3 did not answer")
	counters := report.Rules[0].Counters
	require.Len(t, counters, 2, "edge-4 has another key")
	require.EqualValues(t, 4, *counters[0].Denied)
	require.Equal(t, "denied, retry after 5ms", counters[0].Now())
	require.Nil(t, counters[1].Denied)
	require.Equal(t, url.Values{"rule": {"user"}, "key": {"alice"}, "n": {"3"}}, (*calls)[1].form)
	for _, c := range *calls {
		require.Contains(t, []string{"/v1/explain", "/v1/counters/peek", "/v1/counters/top"}, c.path)
	}
}

// TestTopSaysWhichKeysAreBlocked: it asks for the counters of keys that can be named, if their rule blocks.
func TestTopSaysWhichKeysAreBlocked(t *testing.T) {
	const keys = `"keys":[{"key":["alice",null],"denied":4,"error":0},{"key":["bo"],"cut":true,"denied":2,"error":0},` +
		`{"hash":"h1","denied":1,"error":0}]`
	s, calls := server(t, map[string]string{
		"/v1/counters/top": `{"proxies":[{"proxy":"edge-1","denials":[]}],"denials":[{"rule":"free",` + keys + `},` +
			`{"rule":"ends","blocks":true,` + keys + `},{"rule":"two","blocks":true,` + keys + `},` +
			`{"rule":"some","blocks":true,` + keys + `},{"rule":"none","blocks":true,` + keys + `},` +
			`{"rule":"cluster","blocks":true,` + keys + `}]}`,
		"/v1/counters/get ends": `{"proxies":[{"proxy":"edge-1","value":1},{"proxy":"edge-2","value":1}]}`,
		"/v1/counters/get two": `{"proxies":[{"proxy":"edge-1","value":1,"blocked_ms":5},` +
			`{"proxy":"edge-2","value":1,"blocked_ms":9}]}`,
		"/v1/counters/get some": `{"proxies":[{"proxy":"edge-1","value":1,"blocked_ms":5},` +
			`{"proxy":"edge-2","error":"gone"}]}`,
		"/v1/counters/get none": `{"proxies":[{"proxy":"edge-1","value":1},{"proxy":"edge-2","error":"gone"}]}`,
		"/v1/counters/get cluster": `{"quota":{"value":1,"blocked_ms":7},"proxies":[{"proxy":"edge-1","value":0},` +
			`{"proxy":"edge-2","error":"gone"}]}`,
	})
	report, err := Top(t.Context(), s, url.Values{})
	require.NoError(t, err)
	ms := func(n int64) *int64 { return &n }
	for i, want := range []struct {
		blocked  *int64
		notKnown string
	}{{nil, ""}, {ms(0), ""}, {ms(9), ""}, {ms(5), "edge-2 failed: gone"}, {nil, "edge-2 failed: gone"}, {ms(7), ""}} {
		d := &report.Denials[i]
		require.Equal(t, want.blocked, d.Keys[0].BlockedMs, d.Rule)
		require.Equal(t, want.notKnown, d.Keys[0].BlockedNotKnown, d.Rule)
		for _, k := range d.Keys[1:] {
			require.Nil(t, k.BlockedMs)
			require.Equal(t, d.Blocks, k.BlockedNotKnown != "")
		}
	}
	require.Len(t, *calls, 1+5)
	require.Equal(t, url.Values{"rule": {"ends"}, "key": {"alice", "(missing)"}}, (*calls)[1].form)
}

// TestTopDoesNotWaitForever: keys whose turn comes late are not asked about.
func TestTopDoesNotWaitForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const key = `{"key":["a"],"denied":1,"error":0}`
		s, calls := server(t, map[string]string{
			"/v1/counters/top": `{"proxies":[{"proxy":"edge-1","denials":[]}],` +
				`"denials":[{"rule":"r","blocks":true,"keys":[` + strings.Repeat(key+",", 9) + key + `]}]}`,
			"/v1/counters/get r": `{"proxies":[{"proxy":"edge-1","error":"no answer"}]}`,
		})
		post := s.Post
		s.Post = func(ctx context.Context, c *Call) error {
			time.Sleep(4 * time.Second)
			return post(ctx, c)
		}
		report, err := Top(t.Context(), s, url.Values{})
		require.NoError(t, err)
		require.Len(t, *calls, 1+3)
		require.Equal(t, "edge-1 failed: no answer", report.Denials[0].Keys[2].BlockedNotKnown)
		require.Equal(t, "not asked: the keys before it took 10s", report.Denials[0].Keys[3].BlockedNotKnown)
	})
}

// TestFreeLeavesSharedCountersAlone, unless the rule is named.
func TestFreeLeavesSharedCountersAlone(t *testing.T) {
	allow := `{"proxies":[{"proxy":"edge-1",` + allows + `}]}`
	answers := map[string]string{
		"/v1/explain": `{"proxies":[{"proxy":"edge-1","allowed":true,"rules":[` +
			user + `,` + shared + `,` + posts + `,` + lacks + `]}]}`,
		"/v1/counters/peek user": allow, "/v1/counters/reset user": isThere,
		"/v1/counters/peek shared": allow, "/v1/counters/reset shared": isThere,
		"/v1/counters/peek posts": `{"proxies":[{"proxy":"edge-1","allowed":true,"rules":[]}]}`, // unlimited
	}
	s, calls := server(t, answers)
	freed, err := Free(t.Context(), s, alice)
	require.NoError(t, err)
	require.Len(t, freed.Resets, 1)
	require.Equal(t, "user", freed.Resets[0].Rule)
	require.True(t, freed.Any())
	require.Zero(t, freed.Missed())
	require.Equal(t, asked{"/v1/counters/reset", url.Values{"rule": {"user"}, "key": {"alice"}}}, (*calls)[2])

	freed, err = FreeIn(t.Context(), s, alice, "shared")
	require.NoError(t, err)
	require.Equal(t, "none, one counter for all", freed.Resets[0].Text())
	_, err = FreeIn(t.Context(), s, alice, "lacks")
	require.Equal(t, &NoKeyError{"lacks", "the request has no cookie"}, err)
	_, err = FreeIn(t.Context(), s, alice, "nope")
	require.EqualError(t, err, `there is no rule "nope", or it is off`)
}

// TestExplainAsksTheQuotaService: where a proxy has no units of a key, the service decides.
func TestExplainAsksTheQuotaService(t *testing.T) {
	const pending = `{"rule":"user","outcome":"matches","pending":true,"mode":"enforced","cost":1,` +
		`"hash":"h1",` + ofAlice + `}`
	blocks := strings.Replace(denies, `"reason":"limit"`, `"reason":"limit","blocked_ms":9`, 1)
	answers := map[string]string{
		"/v1/explain":            `{"proxies":[{"proxy":"edge-1","pending":true,"rules":[` + pending + `]}]}`,
		"/v1/counters/peek user": `{"quota":{` + blocks + `},"proxies":[{"proxy":"edge-1","value":0}]}`,
	}
	s, _ := server(t, answers)
	rows, notKnown, err := Explain(t.Context(), s, alice)
	require.NoError(t, err)
	require.Empty(t, notKnown)
	require.False(t, rows[0].Pending)
	require.False(t, *rows[0].Allowed)
	require.Equal(t, "user", rows[0].DeniedBy)
	require.EqualValues(t, 5, *rows[0].RetryMs)
	require.Equal(t, "limit", rows[0].Rules[0].Reason)
	require.EqualValues(t, 9, rows[0].Rules[0].BlockedMs)
}

func TestNoProxyIsAnError(t *testing.T) {
	s, _ := server(t, map[string]string{"/v1/explain": `{"proxies":[]}`})
	_, err := Find(t.Context(), s, alice)
	require.ErrorIs(t, err, ErrNoProxy)
}
