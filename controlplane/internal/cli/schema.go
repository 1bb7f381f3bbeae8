package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policydoc"
)

func newSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the policy file, for editors",
		Long: `Print the JSON Schema (draft 2020-12) of the policy file, by which editors complete
and check it. The YAML language server takes it from a line at the top of the policy:

  # yaml-language-server: $schema=policy.schema.json

It accepts every valid policy, and does not find all that sluice validate finds.`,
		Example: `  sluice schema > policy.schema.json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := policydoc.JSONSchema()
			if err != nil {
				return err
			}
			if _, err := cmd.OutOrStdout().Write(text); err != nil {
				return fmt.Errorf("write schema: %w", err)
			}
			return nil
		},
	}
}
