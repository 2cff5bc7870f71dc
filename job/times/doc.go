// Package times says when a schedule fires. It is pure: the time zone is an argument.
//
//	rule.go      Rule: the next time from cron expressions, calendars and an interval; exclusions
//	pattern.go   the days and the times of a day that a cron expression or a calendar matches
//	parse.go     from the texts of a job file to patterns
//	wall.go      from the clock on the wall to the time line: daylight-saving changes
//
// A time of a day that a change of the clock skips counts at the end of the change. A time that
// occurs twice counts the first time. An expression for every hour follows the time line instead: it
// fires in both of two equal hours.
package times
