package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/auditwire"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// errStored refuses --stored without a region.
var errStored = errors.New("--stored needs --region: it shows what the global tier has stored of the trail of a region")

func exportCommand(s *cli.Settings) *cobra.Command {
	file, stored := "-", false
	c := &cobra.Command{
		Use: "export", Short: "Write the audit trail into a file that can be verified later", Args: cli.Positional(),
		Long: `Writes the whole trail as lines of JSON, with a signed checkpoint at the end. The file
can be verified without any server: nusa audit verify FILE --key KEY. Keep checkpoints and
the key where the servers cannot change them.`,
		RunE: s.Run(func(c *cli.Session, _ []string) (err error) {
			if file == "-" {
				return export(c, c.Out, stored)
			}
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			defer func() {
				err = errors.Join(err, f.Close())
				if err != nil {
					err = errors.Join(err, os.Remove(file))
				}
			}()
			return export(c, f, stored)
		}),
	}
	s.BindRegion(c, "the trail of this region")
	storedFlag(c, &stored)
	c.Flags().StringVarP(&file, "file", "f", file, "a new file; - is standard output")
	return c
}

// export writes the trail of the server as a file. stored: what the global tier has stored of a
// region's trail.
func export(c *cli.Session, to io.Writer, stored bool) error {
	if stored && c.Region == "" {
		return errStored
	}
	stream, err := c.Audit().Export(c.Ctx, &nusav1.ExportAuditRequest{Region: c.Region, Stored: stored})
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	base, err := auditwire.Tree(first.GetHead().GetBase())
	if err != nil || first.GetHead() == nil {
		return errors.Join(errors.New("the server's trail has no beginning"), err)
	}
	out, err := audit.NewWriter(to, first.GetHead().GetTrail(), first.GetHead().GetKey(), base)
	if err != nil {
		return err
	}
	for {
		chunk, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("the trail ends without a checkpoint: %w", err)
		}
		if end := chunk.GetCheckpoint(); end != nil {
			return out.Checkpoint(end.GetSigned())
		}
		if err := writePart(out, chunk.GetPart()); err != nil {
			return err
		}
	}
}

func writePart(out audit.Writer, part *nusav1.AuditPart) error {
	before, err := auditwire.Tree(part.GetBefore())
	if err != nil {
		return err
	}
	if err := out.Mark(before); err != nil {
		return err
	}
	for _, e := range part.GetEntries() {
		if err := out.Entry(auditwire.Exported(e)); err != nil {
			return err
		}
	}
	return nil
}

func verifyCommand(s *cli.Settings) *cobra.Command {
	var key string
	var stored bool
	var checkpoints []string
	c := &cobra.Command{
		Use: "verify [FILE]", Short: "Find missing, changed and reordered entries of the audit trail", Args: cli.Positional("[FILE]"),
		Long: `Verifies the trail in a file that audit export has written, without any server. Without
FILE the trail of the server is read and verified. The command names the damaged entries,
and fails if there are any.

A server that is broken into can sign a false trail, too. So keep exported files or
checkpoints elsewhere, and give them with --checkpoint: then entries that were
signed once cannot be changed any more without being found.`,
		Example: `  nusa audit export -f today.jsonl
  nusa audit verify today.jsonl --checkpoint yesterday.jsonl --key KEY`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			trail, err := readTrail(c, args, stored)
			if err != nil {
				return err
			}
			var earlier []string
			for _, name := range checkpoints {
				signed, err := checkpointOf(name)
				if err != nil {
					return fmt.Errorf("--checkpoint %s: %w", name, err)
				}
				earlier = append(earlier, signed)
			}
			given := key != ""
			if !given {
				key = trail.Key
			}
			if _, err := audit.KeyName(key); err != nil {
				return err
			}
			report := reportOf(trail.Trail, key, audit.Verify(trail, key, earlier...))
			if err := c.Print(report, func(w *term.Screen) { writeReport(w, report, given) }); err != nil {
				return err
			}
			if len(report.GetFindings()) > 0 {
				return &cli.ExitError{Code: cli.ExitFail}
			}
			return nil
		}),
	}
	s.BindRegion(c, "the trail of this region")
	storedFlag(c, &stored)
	c.Flags().StringVar(&key, "key", "", "public key of the trail; without it, the key that the trail itself names")
	c.Flags().StringArrayVar(&checkpoints, "checkpoint", nil, "an earlier exported trail, or its checkpoint alone, to which the trail must fit")
	return c
}

func readTrail(c *cli.Session, args []string, stored bool) (audit.Export, error) {
	if len(args) > 0 {
		if args[0] == "-" {
			return audit.Read(c.Cmd.InOrStdin())
		}
		f, err := os.Open(args[0])
		if err != nil {
			return audit.Export{}, err
		}
		defer f.Close()
		return audit.Read(f)
	}
	r, w := io.Pipe()
	defer r.Close() // ends the writer
	go func() { w.CloseWithError(export(c, w, stored)) }()
	return audit.Read(r)
}

// checkpointOf returns the signed checkpoint in a file: an exported trail, or the checkpoint alone.
func checkpointOf(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	trail, err := audit.Read(f)
	if err == nil {
		return trail.Checkpoint, nil
	}
	if !errors.Is(err, audit.ErrNoExport) {
		return "", err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	const most = 16 << 10
	text, err := io.ReadAll(io.LimitReader(f, most))
	return string(text), err
}

func reportOf(trail, key string, r audit.Report) *nusav1.AuditReport {
	out := &nusav1.AuditReport{
		Trail: trail, Key: key, First: r.First, Last: r.Last, Entries: r.Entries, Signed: r.Signed, TooOld: r.TooOld,
	}
	for _, f := range r.Findings {
		out.Findings = append(out.Findings, &nusav1.AuditFinding{Damage: string(f.Damage), From: f.From, To: f.To, Why: f.Why})
	}
	return out
}

func writeReport(w *term.Screen, r *nusav1.AuditReport, keyGiven bool) {
	fmt.Fprintln(w, strings.Join([]string{w.Bold(term.OneLine(r.GetTrail())), entriesText(r)}, term.Gap))
	for _, f := range r.GetFindings() {
		one := audit.Finding{Damage: audit.Damage(f.GetDamage()), From: f.GetFrom(), To: f.GetTo(), Why: term.OneLine(f.GetWhy())}
		fmt.Fprintln(w, w.Bad("damaged: ")+one.String())
	}
	if len(r.GetFindings()) == 0 {
		fmt.Fprintln(w, w.Good("sound: ")+fmt.Sprintf("nothing is missing, changed or reordered, and the entries up to %d are signed", r.GetSigned()))
	}
	for _, size := range r.GetTooOld() {
		fmt.Fprintln(w, w.Wait(fmt.Sprintf("the checkpoint of %d entries was not compared: entries up to there are no longer kept", size)))
	}
	if !keyGiven && len(r.GetFindings()) == 0 {
		fmt.Fprintln(w, w.Faint("the trail itself names its key; keep the key, and give it with --key "+r.GetKey()))
	}
}

func entriesText(r *nusav1.AuditReport) string {
	if r.GetEntries() == 0 {
		return "no entries"
	}
	return fmt.Sprintf("%d entries, %d to %d", r.GetEntries(), r.GetFirst(), r.GetLast())
}
