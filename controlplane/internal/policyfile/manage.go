package policyfile

import (
	"github.com/sluice-ratelimit/sluice/controlplane/internal/weaktoken"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// weakToken finds in the manage section of a valid policy a token that anyone would
// guess.
func weakToken(manage *policy.Node) *Problem {
	if manage == nil {
		return nil
	}
	token := manage.Member("token_sha256")
	why, weak := weaktoken.Weak(token.Text)
	if !weak {
		return nil
	}
	return &Problem{
		Line: token.Line, Column: token.Column, Path: "manage.token_sha256",
		Message: why + ": make a token with openssl rand -hex 32",
	}
}
