package nginxkey

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// counted are the forms of a key, with the variables that the blocks make.
func counted(t *testing.T, blocks, key string) []Form {
	t.Helper()
	return variables(t, blocks).Counted(key)
}

// variables are those that the blocks make.
func variables(t *testing.T, blocks string) *Variables {
	t.Helper()
	d := draft.New("nginx", "n", policy.ScopeProxy)
	v := New(d.Findings, "")
	list, err := nginxconf.Parse(nginxconf.File{Name: "n", Text: []byte(blocks)}, nil)
	require.NoError(t, err)
	for _, block := range list {
		v.Read(block)
	}
	require.NoError(t, d.Err())
	return v
}

// The example of the package: nobody counts the requests of gold.
func TestEachFormIsForOtherRequests(t *testing.T) {
	plan := request.Header("x-plan")
	isGold, isStaff := plan.Fitting(request.Text("gold", true)), plan.Fitting(request.Text("staff", true))
	forms := counted(t, `map $http_x_plan $counted { gold ""; staff all; default $binary_remote_addr; }`, "$counted")
	var isOther request.Selection
	isOther.NarrowTo(request.Selection{}) // an empty match, as a join leaves it
	isOther.ExemptSelected([]request.Selection{isGold, isStaff}, nil)
	require.Equal(t, []Form{
		{Requests: isStaff, Text: "all", Template: "all"},
		{Requests: isOther, parts: []keyPart{partOf["binary_remote_addr"]}, Template: "$"},
	}, forms)
}

// A request has one value of each map, so it has no part of a key that takes two plans together.
func TestTwoMapsOfOneHeader(t *testing.T) {
	const maps = "map $http_x_plan $a { gold x; default y; } map $http_x_plan $b { staff v; gold w; default z; }"
	var texts []string
	for _, f := range counted(t, maps, "$a$b") {
		texts = append(texts, f.Text)
		require.False(t, f.Requests.IsOff(), f.Text)
	}
	require.Equal(t, []string{"xw", "yv", "yz"}, texts)
}

// A request may lack a header, which is the empty text to nginx. It always has a path.
func TestAnExpressionThatFitsTheEmptyText(t *testing.T) {
	for source, forms := range map[string]int{"$http_x_plan": 2, "$uri": 1} {
		found := counted(t, "map "+source+" $key { ~^(/a)? x; }", "$key")
		require.Len(t, found, forms, source)
		for _, f := range found {
			require.False(t, f.Requests.IsOff(), source)
		}
	}
}

// To nginx the texts 10.1.2.3 and ::1 of a header are addresses, and to a policy they are texts: no match has those of
// a network. A rule that exempts the text 10.0.0.0/8 would limit the clients that nginx does not count.
func TestNetworksOfWhatIsNoAddress(t *testing.T) {
	for _, source := range []string{"$http_x_real_ip", "$cookie_a", "$arg_a", "$host", "$uri"} {
		for _, network := range []string{"10.0.0.0/8", "10.0.0.1"} {
			forms := counted(t, "geo "+source+" $key { "+network+` ""; default $binary_remote_addr; }`, "$key")
			require.Len(t, forms, 1, source)
			require.True(t, forms[0].Requests.IsOff(), source)
		}
	}
}

// A policy has one host for a.example with any port. What it does not tell from an earlier entry has a rule that is
// off: it does not vanish.
func TestEntriesThatAPolicyDoesNotTellApart(t *testing.T) {
	for source, entries := range map[string]string{
		"$http_host":   `a.example:8080 ""; a.example:80 $binary_remote_addr;`,
		"${http_host}": `a.example:80 ""; a.example $binary_remote_addr;`,
		"$Http_Host":   `a.example ""; a.example:80 $binary_remote_addr;`,
	} {
		forms := counted(t, "map "+source+" $key { "+entries+` default ""; }`, "$key")
		require.Len(t, forms, 1, entries)
		require.Equal(t, []request.WhyOff{
			"No match can select its requests: a policy does not tell them from those of an earlier entry of the map.",
		}, forms[0].Requests.WhyOff(), entries)
	}
}

// nginx takes the last of two entries of a geo that are of one network, and warns.
func TestTheLastEntryOfANetwork(t *testing.T) {
	for entries, text := range map[string]string{
		"10.1.0.0/16 a; 10.1.2.0/16 b; 10.2.0.0/16 c;":    "b",
		"10.1.2.3 a; 10.1.0.0/16 c; 10.1.2.3/32 b;":       "b",
		"2001:db8::/32 a; 2001:DB8::/32 b; 10.0.0.0/8 c;": "c",
		"10.0.0.0/8 a; 10.2.0.0/16 b; 10.0.0.0/8 c;":      "c",
	} {
		forms := counted(t, "map $host $ip { default 10.1.2.3; }\ngeo $ip $key { "+entries+" }", "$key")
		require.Len(t, forms, 1, entries)
		require.Equal(t, text, forms[0].Text, entries)
	}
}

// nginx compares the names of hosts without case, also in a header.
func TestHostsOfAHeader(t *testing.T) {
	forms := counted(t, `map $http_x_host $key { hostnames; *.a.example ""; default $binary_remote_addr; }`, "$key")
	require.Len(t, forms, 1)
	isBelow := request.Header("x-host").Fitting(request.Suffix(".a.example", true))
	below, _ := isBelow.Match()
	require.Equal(t, []request.Match{below}, forms[0].Requests.Exempt())
}

// $request_uri has the query, and $binary_remote_addr is no text, also if a map hands them on.
func TestWhatAMapHandsOn(t *testing.T) {
	const entry = ` "~debug=1" ""; 10.0.0.1 ""; default $host; }`
	for _, variable := range []string{"$request_uri", "${binary_remote_addr}"} {
		handedOn := "map $host $a { default " + variable + "; }\nmap $a $b { default $a; }\n"
		for _, source := range []string{variable, "$b"} {
			forms := counted(t, handedOn+"map "+source+" $key {"+entry, "$key")
			require.Len(t, forms, 1, source)
			require.True(t, forms[0].Requests.IsOff(), source)
		}
	}
}

// A key has the parts of its variables, each once, and the text between them.
func TestPartsAndTextOfAKey(t *testing.T) {
	forms := counted(t, "", "$host:${http_x_user}:$host")
	require.Len(t, forms, 1)
	require.Equal(t, []request.Part{request.Host, request.Header("x-user").Part}, forms[0].Parts())
	require.Equal(t, "::", forms[0].Text)
	require.Equal(t, "$:$:$", forms[0].Template)
}

// nginx takes its variables in any case.
func TestNamesOfVariablesHaveNoCase(t *testing.T) {
	forms := counted(t, "map $http_X_Plan $Counted { default $Binary_Remote_Addr; }", "$counted:$HTTP_x_user")
	require.Len(t, forms, 1)
	require.Equal(t, []request.Part{request.ClientIP, request.Header("x-user").Part}, forms[0].Parts())
	forms = counted(t, "", "$Arg_userID")
	require.Equal(t, []request.Part{{Kind: request.KindQuery, Name: "userID"}}, forms[0].Parts(), "as clients spell it")
}

// A key that a policy cannot have has one form, which is off.
func TestKeysThatAPolicyCannotHave(t *testing.T) {
	for blocks, why := range map[string]string{
		"":                             "A policy has nothing like nginx' $key.",
		"map $key $key { a b; }":       "The key looks up more than 1000 variables.",
		"map $key $key { include f; }": "The file f is not here, which $key is made of.",
		"map $host$uri $key { a b; }":  "A map looks up several parts of the request together.",
		"map $host$host $key { a b; }": "A map looks up several parts of the request together.",
		"geo $key { ranges; }":         "The import does not read ranges of geo $key.",
	} {
		forms := counted(t, blocks, "$key")
		require.Len(t, forms, 1, blocks)
		require.Equal(t, []request.WhyOff{request.WhyOff(why)}, forms[0].Requests.WhyOff(), blocks)
	}
}

// Maps that look each other up many times would take forever. The import ends soon, and says why.
func TestMapsThatLookUpTooMuch(t *testing.T) {
	const depth = 9
	blocks := "map $remote_addr $key0 { default $host; }\n"
	for i := 1; i <= depth; i++ {
		blocks += fmt.Sprintf("map $uri $key%d { default %s; }\n", i, strings.Repeat(fmt.Sprint("$key", i-1), 40))
	}
	forms := counted(t, blocks, fmt.Sprint("$key", depth))
	require.Len(t, forms, 1)
	require.Equal(t, []request.WhyOff{"The key looks up more than 1000 variables."}, forms[0].Requests.WhyOff())
}

// What no request has makes no difference, so the import does not look it up: none of the texts is an address.
func TestEntriesThatNoRequestHas(t *testing.T) {
	const depth = 9
	blocks := "map $remote_addr $key0 { default $host; }\n"
	for i := 1; i <= depth; i++ {
		blocks += fmt.Sprintf("map $remote_addr $key%d {", i)
		for k := range 40 {
			blocks += fmt.Sprintf(" a%d $key%d; b%d ${key%d}$unknown;", k, i-1, k, i-1)
		}
		blocks += " default $host; }\n"
	}
	require.Equal(t, counted(t, "", "$host")[0].Parts(), counted(t, blocks, fmt.Sprint("$key", depth))[0].Parts())
}

// A map with too many entries is off before they are compared with each other, also if they make few forms.
func TestEntriesAreCountedBeforeTheyAreCompared(t *testing.T) {
	for entries, why := range map[int][]request.WhyOff{100: nil, 101: {"The key has more than 100 forms."}} {
		blocks := "map $uri $key {"
		for i := range entries {
			blocks += fmt.Sprintf(" ~^/a v%d;", i)
		}
		forms := counted(t, blocks+" }", "$key")
		require.Len(t, forms, 1)
		require.Equal(t, why, forms[0].Requests.WhyOff())
	}
}

// A key with too many forms is off before they are made: each has a match of its own, and a million would take
// gigabytes.
func TestFormsAreCountedBeforeTheyAreMade(t *testing.T) {
	const entries = 20
	blocks := manyForms("a", entries, "") + manyForms("c", entries, "") +
		manyForms("by_part", entries, "$c") + "map $a $by_text { default $c; }\n"
	for _, key := range []string{"$a$by_part", "$a$by_text", "$a$c"} {
		var forms []Form
		allocations := testing.AllocsPerRun(1, func() { forms = counted(t, blocks, key) })
		require.Len(t, forms, 1, key)
		require.Equal(t, []request.WhyOff{"The key has more than 100 forms."}, forms[0].Requests.WhyOff(), key)
		require.Less(t, allocations, 25_000.0, key) // 13,500; from 43,000 without one of the checks of maxForms
	}
}

// manyForms is a map of a header that has the name of its variable. Each entry has a value of its own, which
// ends alike.
func manyForms(name string, entries int, end string) string {
	text := "map $http_" + name + " $" + name + " { default other" + end + ";"
	for i := range entries {
		text += fmt.Sprintf(" e%d v%d%s;", i, i, end)
	}
	return text + " }\n"
}
