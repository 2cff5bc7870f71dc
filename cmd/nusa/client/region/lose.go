package region

import (
	"fmt"
	"os"
	"os/user"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func loseCommand(s *cli.Settings) *cobra.Command {
	var confirm, why, by string
	c := &cobra.Command{
		Use: "lose REGION", Short: "State that nothing runs in a region any more", Args: cli.Positional("REGION"),
		Long: `States that nothing runs in a region any more, for example because its hosts were
destroyed. Everything that the region owns may move to other regions at once, also
singletons and work with disconnect.region.replace: false, and another cluster may
take the name of the region. If something does run there, it runs twice. So the
statement is confirmed with the name of the region: typed at the prompt, or with
--confirm. The statement is recorded, with who made it and why.`,
		Example: "  nusa region lose jakarta --why 'flooded, hosts scrapped'",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			name := args[0]
			if confirm == "" {
				var err error
				confirm, err = typedName(c, name)
				if err != nil {
					return err
				}
			}
			if confirm != name {
				return fmt.Errorf("%q is not the name of the region, %s: nothing has changed", confirm, name)
			}
			if by == "" {
				by = caller()
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			r, err := c.Regions().Lose(ctx, &nusav1.LoseRegionRequest{Name: name, Confirm: confirm, Why: why, By: by})
			if err != nil {
				return err
			}
			return c.Print(r, func(w *term.Screen) {
				fmt.Fprintf(w, "region %s is lost: what it owned moves to other regions, as far as they have room; %s region list shows what is left\n", name, c.Program)
			})
		}),
	}
	c.Flags().StringVar(&confirm, "confirm", "", "the name of the region, instead of the prompt")
	c.Flags().StringVar(&why, "why", "", "why, for the record")
	c.Flags().StringVar(&by, "by", "", "who states it, for the record (default: user and host)")
	return c
}

// typedName asks the user for the name of the region and returns what the user types.
func typedName(c *cli.Session, name string) (string, error) {
	ctx, cancel := c.WithTimeout()
	defer cancel()
	r, err := c.Regions().Get(ctx, &nusav1.GetRegionRequest{Name: name})
	if err != nil {
		return "", err
	}
	if r.GetState() == nusav1.RegionState_REGION_STATE_CONNECTED {
		return "", fmt.Errorf("region %s is connected, so its work may run: `%s region drain %s` moves the work away in order; if the region is really gone, stop its servers first",
			name, c.Program, name)
	}
	c.Warn("region %s is %s. If anything still runs there, it is going to run twice.", name, term.Word(r.GetState()))
	c.Warn("Type the name of the region to state that nothing runs there:")
	line, typed := c.ReadLine()
	if !typed {
		return "", fmt.Errorf("nothing was typed, and nothing has changed: type the name of the region, or give --confirm %s", name)
	}
	return line, nil
}

// caller returns the user and the host, for the record of the statement.
func caller() string {
	name, host := os.Getenv("USER"), ""
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = "@" + h
	}
	return name + host
}
