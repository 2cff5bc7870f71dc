// Package region has the commands of `nusa region`: define regions, show their reports,
// cordon, drain, verify and remove them, and handle lost regions.
//
//   - command.go: the noun, region cordon, uncordon and remove
//   - drain.go: region drain
//   - failback.go: region failback
//   - define.go: region define
//   - lose.go: region lose
//   - list.go: region list, and the state of a region in words
//   - status.go: region status
//   - rebind.go: region rebind
//   - verify.go: region verify
//   - joinpolicy.go: region join-policy
//   - ban.go: region ban and unban, region server remove, ban and unban
package region
