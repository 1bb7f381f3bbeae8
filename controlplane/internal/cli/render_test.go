package cli

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/examples"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// TestEmptyPolicyIsValid: what render bakes in without -f is a policy.
func TestEmptyPolicyIsValid(t *testing.T) {
	_, _, _, err := policyfile.Read("empty", []byte(envoy.EmptyPolicy))
	require.NoError(t, err)
}

func TestWriteFilter(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	path, err := writeFilter([]byte("one"))
	require.NoError(t, err)
	again, err := writeFilter([]byte("one"))
	require.NoError(t, err)
	require.Equal(t, path, again)
	other, err := writeFilter([]byte("two"))
	require.NoError(t, err)
	require.NotEqual(t, path, other)

	require.NoError(t, os.WriteFile(path, nil, 0o600)) // a disk that was full
	_, err = writeFilter([]byte("one"))
	require.NoError(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "one", string(text))
	files, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, files, 2, "no temporary files left")
}

func runRender(t *testing.T, stdin string, args ...string) (stdout string, err error) {
	t.Helper()
	var out bytes.Buffer
	cmd := NewRootCommand()
	cmd.SetArgs(append([]string{"render"}, args...))
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	err = cmd.Execute()
	return out.String(), err
}

// pushedIn is the policy in a rendered resource, as the filter reads it.
func pushedIn(t *testing.T, read func([]byte) ([]buildtest.Resource, error), resource string) *policy.Policy {
	t.Helper()
	list, err := read([]byte(resource))
	require.NoError(t, err, resource)
	require.Len(t, list, 1)
	tree, err := policy.ParseJSON([]byte(list[0].Policy(t)))
	require.NoError(t, err)
	got, problems := policy.ReadPushed(tree)
	require.Empty(t, problems, resource)
	return got
}

var meshes = [][]string{
	{"istio", "-f", "-", "--url", "oci://a/b"}, {"istio", "--kind", "traffic-extension", "-f", "-", "--url", "oci://a/b"},
	{"envoy-gateway", "--target", "Gateway/a", "-f", "-", "--url", "oci://a/b"},
}

const (
	clusterPolicy = "version: 1\nrules: [{name: all, scope: cluster, limits: [10/1s]}]\n"
	meshCluster   = "outbound|18001||quota.shop.svc.cluster.local"
)

// policiesForKubernetes are texts that YAML 1.1 reads otherwise than a policy
// file, and shapes that are hard to move under a field; and those whose rules ask a
// quota service, with --quota-cluster and the cluster that is written then.
var policiesForKubernetes = map[string]struct{ text, flag, cluster string }{
	"quickstart": {text: string(examples.Quickstart)},
	"words": {text: "version: 1\n" +
		"rules: [{name: y, mode: off, limits: [1/1s]}, {name: no, mode: \"off\", limits: []}]\n"},
	"byte order": {text: "\uFEFFversion: 1\nrules: []\n"},
	"line ends":  {text: "# a\r\nversion: 1\r\nrules:\r\n  # b\r\n  - name: a # c\r\n    limits: [1/1s]\r\n"},
	"anchors": {text: "version: 1\nrules:\n" +
		"  - {name: a, match: &m {headers: {no: \"1_0\", y: on}}, limits: &l [1/1s, 2/1m]}\n" +
		"  - {name: b, match: *m, limits: *l}\n"},
	"numbers": {text: "version: 1\nrules:\n" +
		"  - {name: a, capacity: 1.6777216e7, cost: 4294967295, " +
		"limits: [{requests: 10.0, per: 1d}, {requests: 1e6, per: 2d}]}\n"},
	"json": {text: `{"version":1,"rules":[{"name":"\ud83d\ude00 \/ 10","counter":"off","mode":"off",` +
		`"limits":[{"requests":5,"per":"1m","name":"1:30"}]},{"name":"10","limits":[]}]}`},
	"json indented": {text: "{\n\t\"version\": 1,\n\t\"rules\": [\n" +
		"\t\t{\"name\": \"a\\u2028b\", \"limits\": []}\n\t]\n}\n"},
	"comments": {text: "# head\n\n# of version\nversion: 1 # here\n# between\n\n" +
		"rules: # of rules\n  # first\n\n  # really\n  - # dash\n    name: a\n" +
		"    key: [\n      # in flow\n      {header: x}, # after\n    ]\n" +
		"    limits:\n    - 1/1s\n    # foot of limits\n  # foot of rules\n# the end\n"},
	"styles": {text: "version: 1\nrules:\n- name: |-\n    literal: yes\n  limits: []\n" +
		"- name: >-\n    folded\n    text\n  limits: []\n- name: 'it''s'\n  limits: []\n" +
		"- name: \"\\u00e9\\\"\\\\\"\n  limits: []\n- name: plain\n    on two lines\n  limits: []\n" +
		"- {name: \"off\", limits: []}\n- {name: 'null', limits: []}\n"},
	"flow": {text: "{version: 1, rules: [{name: on, limits: [10/1s]}]} # all\n"},

	"default cluster": {text: clusterPolicy, cluster: "sluice_quota"},
	"its own cluster": {text: "quota: {cluster: mine}\n" + clusterPolicy, cluster: "mine"},
	"another cluster": {
		text: "quota: # of the mesh\n  cluster: mine # old\n  timeout: 50ms\n" + clusterPolicy,
		flag: meshCluster, cluster: meshCluster,
	},
	"no cluster": {text: "quota: {timeout: 50ms}\n" + clusterPolicy, flag: meshCluster, cluster: meshCluster},
	"no quota":   {text: clusterPolicy, flag: meshCluster, cluster: meshCluster},
	"json of a cluster": {
		text: `{"version":1,"quota":{"timeout":"50ms"},"rules":[{"name":"all","scope":"cluster","limits":["10/1s"]}]}`,
		flag: meshCluster, cluster: meshCluster,
	},
	"a word as cluster": {text: clusterPolicy, flag: "off", cluster: "off"},
}

// TestPolicyIsTheSameInKubernetes: the filter behind Istio and Envoy Gateway
// reads the policy that the file has, but for the mesh's cluster; a comment says what that
// must be.
func TestPolicyIsTheSameInKubernetes(t *testing.T) {
	policiesForKubernetes["random words"] = struct{ text, flag, cluster string }{randomWords(1000), "", ""}
	read := buildtest.Kubernetes(t)
	for name, tc := range policiesForKubernetes {
		t.Run(name, func(t *testing.T) {
			want, _, _, err := policyfile.Read(name, []byte(tc.text))
			require.NoError(t, err)
			for _, args := range meshes {
				if tc.flag != "" {
					args = append(slices.Clip(args), "--quota-cluster", tc.flag)
				}
				stdout, err := runRender(t, tc.text, args...)
				require.NoError(t, err)
				if want.Quota != nil {
					want.Quota.Cluster = tc.cluster
					require.Regexp(t, `\n# "?`+regexp.QuoteMeta(tc.cluster)+`"?, which leads to sluice quota:\n`, stdout)
					require.Contains(t, stdout, fmt.Sprintf("less than quota.timeout (%s)", time.Duration(want.Quota.TimeoutNs)))
				} else {
					require.NotContains(t, stdout, "quota")
				}
				require.Equal(t, want, pushedIn(t, read, stdout), stdout)
			}
		})
	}
}

// randomWords is a policy with rules and header names that look like something
// else; those that a policy file takes for no text are left out.
func randomWords(n int) string {
	random := rand.New(rand.NewPCG(1, 2))
	pieces := strings.Split("y n yes no on off ON Off true null ~ = << 0 1 9 0x 0o 0b 010 _ . .. - + : e E f inf "+
		".inf nan NaN 1e3 2024-01-01 T00:00:00Z /1s * # %", " ")
	var text strings.Builder
	text.WriteString("version: 1\nrules:\n")
	seen := map[string]bool{}
	for i := 0; len(seen) < n; i++ {
		word := ""
		for range 1 + random.IntN(4) {
			word += pieces[random.IntN(len(pieces))]
		}
		header := strings.Trim(word, "=:~!*#%/ ")
		rule := fmt.Sprintf("  - {name: %s, match: {headers: {%s: %s}}, limits: []}\n", word, header, word)
		if _, _, _, err := policyfile.Read("word", []byte("version: 1\nrules:\n"+rule)); err != nil || seen[word] {
			continue
		}
		seen[word] = true
		text.WriteString(rule)
	}
	return text.String()
}
