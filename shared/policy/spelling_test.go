package policy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func TestWarningOfSpellings(t *testing.T) {
	const both = `rules[0].match.paths[0]: many an upstream takes "/login/" and "/login;a=1" for this path, and the rule does not: add "/login/*" and "/login;*" where yours does`
	for fields, want := range map[string]string{
		`"match":{"paths":["/login"]},"limits":["1/1s"]`:                               both,
		`"match":{"paths":["=/login"]},"limits":["0/1s"],"mode":"shadow"`:              both,
		`"match":{"paths":["/login"]},"limits":["1/1s"],"mode":"off"`:                  "",
		`"match":{"paths":["/login"]},"limits":[]`:                                     "",
		`"match":{"paths":["/login","/login/*","/login;*"]},"limits":["1/1s"]`:         "",
		`"match":{"paths":["/login","~/login[/;].*"]},"limits":["1/1s"]`:               "",
		`"match":{"paths":["/login*"]},"limits":["1/1s"]`:                              "",
		`"match":{"paths":["/","/a/"]},"limits":["1/1s"]`:                              "",
		`"match":{"paths":["/a*"]},"exempt":[{"paths":["/a/free"]}],"limits":["1/1s"]`: "",
		`"match":{"paths":["/login","/login/*"]},"limits":["1/1s"]`:                    `rules[0].match.paths[0]: many an upstream takes "/login/" and "/login;a=1" for this path, and the rule does not: add "/login;*" where yours does`,
	} {
		_, errs, warnings := policy.Read(parse(t, `{"version":1,"rules":[{"name":"a",`+fields+`}]}`))
		require.Empty(t, messages(errs), fields)
		if want == "" {
			require.Empty(t, messages(warnings), fields)
		} else {
			require.Equal(t, []string{want}, messages(warnings), fields)
		}
	}
}

// What the tables of expressions take is told, once for equal ones.
func TestMemoryOfExpressions(t *testing.T) {
	memory := func(match string) uint64 {
		return valid(t, "d", `{"name":"a","key":["host"],"limits":["1/1s"],`+match+`}`).Memory().ExpressionBytes
	}
	one := memory(`"match":{"paths":["~/a+"]}`)
	require.Zero(t, memory(`"match":{"paths":["/a*"]}`))
	require.Greater(t, one, uint64(256<<10))
	require.Equal(t, one, memory(`"match":{"headers":{"h":"~/a+"}},"exempt":[{"paths":["~/a+"]}],"overrides":[{"key":["~/a+"],"unlimited":true}]`))
	require.Greater(t, memory(`"match":{"headers":{"h":"~/a+"}},"overrides":[{"key":["~/b+"],"unlimited":true}]`), one)
}
