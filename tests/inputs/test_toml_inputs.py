"""Bad study.toml files and suites: each is refused in one line that names the value and the rule."""

# ruff: noqa: E501 (a row is a line)

from __future__ import annotations

import os
from pathlib import Path

import pytest
from answers import refused

import toys
from fedtuner.experiments import suite
from fedtuner.run import spec

# A study of toys; a row's text comes before it, so that it may set a key of the top level or open a table.
SMALL = 'problem = "toys:problem"\ncohort = 3\n'
HUGE = "1" + "0" * 5000

# id, the lines that are wrong, what the message must match.
SETTINGS = [
    # Names at every level
    ("key-misspelt", "cohrot = 3", r"no setting 'cohrot'; did you mean 'cohort'\?"),
    ("key-of-another-case", "Cohort = 3", r"no setting 'Cohort'; did you mean 'cohort'\?"),
    ("key-empty", '"" = 3', r"no setting ''; known: .*cohort"),
    ("key-of-a-space", '"co hort" = 3', r"no setting 'co hort'; did you mean 'cohort'\?"),
    ("key-in-unicode", '"ko\u0127ort" = 3', r"no setting 'ko\u0127ort'; did you mean 'cohort'\?"),
    ("key-with-a-newline", '"a\\nb" = 3', r"no setting 'a\\nb'; known: "),
    ("key-very-long", f'"{"x" * 1000}" = 3', r"no setting 'x+ ?\.\.\.'?; known: "),
    ("key-of-the-schedule", "budget = 100\n[schedule]", r"both given.*did you mean 'schedule.budget'\?"),
    ("key-of-the-schedule-misspelt", "bugdet = 100", r"no setting 'bugdet'; did you mean 'budget'\?"),
    ("key-of-fedex", "k = 9", r"no setting 'k'; did you mean 'fedex.k'\?"),
    ("key-of-the-sampler", "startup = 9", r"no setting 'startup'; did you mean 'sampler.startup'\?"),
    ("key-of-two-tables", "share = 0.1", r"no setting 'share'; did you mean 'combine.share' or 'schedule.share'\?"),
    ("key-of-the-client", "epochs = 9", r"no setting 'epochs'; did you mean 'client.epochs'\?"),
    ("key-of-both-sides", "lr = 0.1", r"no setting 'lr'; did you mean 'client.lr' or 'server.lr'\?"),
    ("key-of-python", "store = 'here'", r"no setting 'store'; known: "),
    ("key-settings", "settings = {}", r"no setting 'settings'; known: "),
    ("key-space", "space = {}", r"no setting 'space': ranges and values stand under \[client\] and"),
    ("schedule-key", "[schedule]\nbudgte = 9", r"no setting schedule.budgte in halving; did you mean 'budget'\?"),
    ("schedule-key-of-the-top", "[schedule]\nseed = 9", r"no setting schedule.seed; did you mean 'seed', before all \[tables\]\?"),
    ("fedex-key", "[fedex]\nkk = 3", r"no setting fedex.kk; did you mean 'k'\?|no setting fedex.kk; known: .*k"),
    ("fedex-key-of-the-top", "[fedex]\ncohort = 3", r"no setting fedex.cohort; did you mean 'cohort', before all \[tables\]\?"),
    ("tuner-key", "[tuner]\nepss = 3", r"no setting tuner.epss in fedex; did you mean 'eps'\?"),
    ("sampler-key", "[sampler]\nkind = 'tpe'\nstartpu = 3", r"no setting sampler.startpu.*; did you mean 'startup'\?"),
    ("ball-key", "[sampler]\nkind = 'ball'\nepss = 3", r"no setting sampler.epss.*; did you mean 'eps'\?"),
    ("combine-key", "[combine]\nkind = 'trimmed'\nshaer = 3", r"no setting combine.shaer in trimmed; .* 'share'\?"),
    ("client-key", "[client]\nleraning_rate = 3", r"no client hyperparameter 'leraning_rate' in fedavg; .* 'lr'\?"),
    ("server-key", "[server]\nmomentun = 3", r"no server hyperparameter 'momentun' in fedavg; .* 'momentum'\?"),
    ("client-key-of-a-model", "[client]\ndropout = 0.5", r"no client hyperparameter 'dropout' .* no dropout layer"),
    ("range-key", "[client]\nlr = { low = 1, hihg = 3 }", r"client.lr: no key 'hihg' in a range; did you mean 'high'\?"),
    # Kinds
    ("schedule-kind", "[schedule]\nkind = 'havling'", r"schedule.kind = 'havling', .*did you mean 'halving'\?"),
    ("schedule-kind-a-number", "[schedule]\nkind = 3", r"schedule.kind = 3, but must be one of"),
    ("schedule-kind-empty", "[schedule]\nkind = ''", r"schedule.kind = '', but must be one of"),
    ("schedule-kind-a-list", "[schedule]\nkind = ['halving']", r"schedule.kind = \['halving'\], but must be one of"),
    ("schedule-kind-a-table", "[schedule]\nkind = { a = 1 }", r"schedule.kind = \{'a': 1\}, but must be one of"),
    ("schedule-kind-absent", "[schedule]\nkind = 'no.such:Class'", r"schedule.kind = 'no.such:Class': no module 'no'"),
    ("schedule-kind-no-class", "[schedule]\nkind = 'toys:'", r"schedule.kind = 'toys:', but must be 'package.module:name'"),
    ("schedule-kind-no-module", "[schedule]\nkind = ':x'", r"schedule.kind = ':x', but must be 'package.module:name'"),
    ("schedule-kind-relative", "[schedule]\nkind = '.a:x'", r"schedule.kind = '.a:x', but must be 'package.module:name'"),
    ("schedule-kind-dots", "[schedule]\nkind = 'absent..b:x'", r"schedule.kind = 'absent..b:x'.*no module 'absent'"),
    ("schedule-kind-a-path", "[schedule]\nkind = '../a.py:x'", r"schedule.kind = '../a.py:x'"),
    ("schedule-kind-unlike", "[schedule]\nkind = 'toys:Data'", r"schedule.x is missing|schedule.*must be a schedule"),
    ("schedule-kind-a-function", "[schedule]\nkind = 'toys:clients'", r"schedule = <function clients>, but must be a schedule"),
    ("schedule-kind-a-problem", "[schedule]\nkind = 'toys:NOT_A_FUNCTION'", r"schedule.*must be a schedule"),
    ("schedule-kind-a-module", "[schedule]\nkind = 'os:path'", r"schedule.*must be a schedule"),
    ("tuner-kind", "[tuner]\nkind = 'fedexx'", r"tuner.kind = 'fedexx', .*did you mean 'fedex'\?"),
    ("tuner-kind-unlike", "[tuner]\nkind = 'builtins:object'", r"tuner.*must be a tuner"),
    ("sampler-unknown", "sampler = 'tpee'", r"sampler = 'tpee', but must be one of .*did you mean 'tpe'\?"),
    ("sampler-a-number", "sampler = 3", r"sampler = 3, but must be one of"),
    ("sampler-empty", "sampler = ''", r"sampler = '', but must be one of"),
    ("sampler-no-kind", "[sampler]\nstartup = 3", r"sampler.kind is missing|sampler.* must be one of"),
    ("sampler-unlike", "sampler = 'builtins:object'", r"sampler.*must be a sampler"),
    ("sampler-too-few", "[sampler]\nkind = 'tpe'\nstartup = 0", r"sampler.startup = 0, but must be a whole number >= 1"),
    ("sampler-halves", "[sampler]\nkind = 'tpe'\nstartup = 1.5", r"sampler.startup = 1.5, but must be a whole number"),
    ("sampler-ball-negative", "[sampler]\nkind = 'ball'\neps = -1", r"sampler.eps = -1, but must be >= 0"),
    ("sampler-that-cannot-learn", "sampler = 'tpe'", r"sampler = 'tpe' learns from finished arms, but halving starts all"),
    ("combine-unknown", "combine = 'medain'", r"combine.* = 'medain', but must be one of .*did you mean 'median'\?"),
    ("combine-a-number", "combine = 3", r"combine.* = 3, but must be one of"),
    ("combine-share-too-large", "[combine]\nkind = 'trimmed'\nshare = 0.5", r"combine.share = 0.5, but must be in \[0, 0.49\]"),
    ("combine-share-a-text", "[combine]\nkind = 'trimmed'\nshare = 'x'", r"combine.share = 'x', but must be"),
    ("combine-unlike", "combine = 'builtins:object'", r"combine.*must be such as"),
    ("method-unknown", "method = 'fedvag'", r"no method 'fedvag'; did you mean 'fedavg'\?"),
    ("method-empty", "method = ''", r"no method ''; known: .*fedavg"),
    ("method-unlike", "method = 'toys:problem'", r"method = 'toys:problem' is function, but must be a Method"),
    ("method-absent", "method = 'toys:fedavgg'", r"method = 'toys:fedavgg': toys has no 'fedavgg'"),
    ("method-a-list", "method = ['fedavg']", r"method = \['fedavg'\], but must be a string"),
    ("optimiser-unknown", "[server]\noptimiser = 'adma'", r"server.optimiser = 'adma', but must be one of"),
    ("optimiser-absent", "[server]\noptimiser = 'toys:adam'", r"server.optimiser = 'toys:adam': toys has no 'adam'"),
    ("optimiser-unlike", "[server]\noptimiser = 'toys:problem'", r"server.optimiser = 'toys:problem' is function, but"),
    ("problem-a-number", "problem = 3", r"problem = 3, but must be a string"),
    ("problem-unknown", "problem = 'digist'", r"no problem 'digist'; did you mean 'digits'\?"),
    ("problem-empty", "problem = ''", r"no problem ''; known: .*digits"),
    ("problem-no-function", "problem = 'toys:'", r"no problem 'toys:'.*package.module:function"),
    ("problem-no-module", "problem = ':problem'", r"no problem ':problem'.*package.module:function"),
    ("problem-relative", "problem = '.toys:problem'", r"no problem '.toys:problem'.*package.module:function"),
    ("problem-absent", "problem = 'toys:problme'", r"problem = 'toys:problme': toys has no 'problme'; did you mean"),
    ("problem-module-absent", "problem = 'no_such:f'", r"problem = 'no_such:f': no module 'no_such'"),
    ("problem-is-none", "problem = 'toys:not_a_problem'", r"problem = 'toys:not_a_problem' gave dict, but must give"),
    ("problem-needs-arguments", "problem = 'toys:write_study'", r"problem = 'toys:write_study' failed: TypeError: .*folder"),
    ("problem-with-nul", 'problem = "to\\u0000ys:x"', r"problem = 'to\\x00ys:x'"),
    # Types
    ("cohort-a-text", "cohort = '3'", r"cohort = '3', but must be a whole number >= 1"),
    ("cohort-halves", "cohort = 2.5", r"cohort = 2.5, but must be a whole number >= 1"),
    ("cohort-zero", "cohort = 0", r"cohort = 0, but must be a whole number >= 1"),
    ("cohort-negative", "cohort = -1", r"cohort = -1, but must be a whole number >= 1"),
    ("cohort-true", "cohort = true", r"cohort = True, but must be a whole number >= 1"),
    ("cohort-too-large", "cohort = 7", r"cohort = 7, but the problem has 6 clients: lower cohort"),
    ("cohort-huge", "cohort = 100000000000000000000", r"cohort = 1000.*, but the problem has 6 clients"),
    ("cohort-a-list", "cohort = [3]", r"cohort = \[3\], but must be a whole number >= 1"),
    ("cohort-a-table", "[cohort]\na = 3", r"cohort = \{'a': 3\}, but must be a whole number >= 1"),
    ("cohort-a-date", "cohort = 1979-05-27", r"cohort = datetime.date\(1979, 5, 27\), but must be a whole number"),
    ("cohort-nan", "cohort = nan", r"cohort = nan, but must be a whole number >= 1"),
    ("cohort-a-long-text", f"cohort = '{'x' * 1000}'", r"cohort = 'x+ ?\.\.\.'?, but must be a whole number >= 1"),
    ("cohort-of-digits", f"cohort = {HUGE}", r"integer.*digits|not TOML|cohort"),
    ("seed-a-text", "seed = 'x'", r"seed = 'x', but must be a whole number"),
    ("seed-halves", "seed = 0.5", r"seed = 0.5, but must be a whole number"),
    ("seed-true", "seed = true", r"seed = True, but must be a whole number"),
    ("seed-a-list", "seed = [0, 1]", r"seed = \[0, 1\], but must be a whole number"),
    ("cohorts", "cohorts = 'sharde'", r"cohorts = 'sharde', but must be one of .*did you mean 'shared'\?"),
    ("cohorts-a-number", "cohorts = 1", r"cohorts = 1, but must be a string"),
    ("target", "target = 'globl'", r"target = 'globl', but must be one of .*did you mean 'global'\?"),
    ("weights", "weights = 'same'", r"weights = 'same', but must be one of"),
    ("weights-a-list", "weights = []", r"weights = \[\], but must be a string"),
    ("cooling-too-large", "cooling = 1.5", r"cooling = 1.5, but must be in \[0, 1\]"),
    ("cooling-negative", "cooling = -0.1", r"cooling = -0.1, but must be in \[0, 1\]"),
    ("cooling-nan", "cooling = nan", r"cooling = nan, but must be in \[0, 1\]"),
    ("cooling-a-text", "cooling = 'x'", r"cooling = 'x', but must be in \[0, 1\]"),
    ("cooling-true", "cooling = true", r"cooling = True, but must be in \[0, 1\]"),
    ("engine", "engine = 'bathced'", r"engine = 'bathced', but must be one of .*did you mean 'batched'\?"),
    ("device-absent", "device = 'gpu'", r"device = 'gpu', but Softmax runs only where it is"),
    ("device-empty", "device = ''", r"device = '', but "),
    ("fedex-a-number", "fedex = 3", r"fedex = 3, but must be a table \(\[fedex\]\) or false"),
    ("fedex-a-text", "fedex = 'off'", r"fedex = 'off', but must be a table"),
    ("fedex-a-list", "[[fedex]]\nk = 3", r"fedex = \[\{'k': 3\}\], but must be a table"),
    ("tuner-and-fedex", "fedex = { k = 3 }\n[tuner]\nkind = 'none'", r"\[tuner\] and fedex are both given"),
    ("tuner-a-text", "tuner = 'none'", r"tuner = 'none', but must be a table: \[tuner\]"),
    ("schedule-a-text", "schedule = 'halving'", r"schedule = 'halving', but must be a table: \[schedule\]"),
    ("schedule-a-list", "[[schedule]]\nbudget = 3", r"schedule = \[.*\], but must be a table"),
    ("client-a-list", "client = [1]", r"client = \[1\], but must be a table: \[client\]"),
    ("server-a-number", "server = 1", r"server = 1, but must be a table: \[server\]"),
    # Schedules that do not fit
    ("budget-too-small", "[schedule]\nbudget = 10", r"budget = 10 is less than longest = 200: raise budget or lower"),
    ("budget-zero", "[schedule]\nbudget = 0", r"schedule.budget = 0, but must be a whole number >= 1"),
    ("budget-negative", "[schedule]\nbudget = -5", r"schedule.budget = -5, but must be a whole number >= 1"),
    ("budget-a-text", "[schedule]\nbudget = '2000'", r"schedule.budget = '2000', but must be a whole number >= 1"),
    ("budget-real", "[schedule]\nbudget = 2e3", r"schedule.budget = 2000.0, but must be a whole number >= 1"),
    ("budget-infinite", "[schedule]\nbudget = inf", r"schedule.budget = inf, but must be a whole number >= 1"),
    ("budget-for-no-elimination", "[schedule]\nbudget = 210", r"budget = 210 cannot give 27 arms .*raise budget to"),
    ("longest-zero", "[schedule]\nlongest = 0", r"schedule.longest = 0, but must be a whole number >= 1"),
    ("longest-too-short", "[schedule]\nlongest = 2", r"longest = 2 has no room for 3 eliminations: raise longest"),
    ("eta-one", "[schedule]\neta = 1", r"schedule.eta = 1, but must be a whole number >= 2"),
    ("eta-huge", "[schedule]\neta = 100000000", r"cannot give .*raise budget|lower eliminations"),
    ("eliminations-huge", "[schedule]\neliminations = 100000000", r"eliminations 100000000.*lower eliminations"),
    ("eliminations-large", "[schedule]\neliminations = 1000", r"eliminations 1000.*lower eliminations"),
    ("eliminations-negative", "[schedule]\neliminations = -1", r"schedule.eliminations = -1, but must be a whole number >= 0"),
    ("eliminations-halves", "[schedule]\neliminations = 1.5", r"schedule.eliminations = 1.5, but must be a whole number"),
    ("discount-two", "[schedule]\ndiscount = 2", r"schedule.discount = 2, but must be in \[0, 1\]"),
    ("discount-a-text", "[schedule]\ndiscount = 'a'", r"schedule.discount = 'a', but must be in \[0, 1\]"),
    ("score", "[schedule]\nscore = 'accuracy'", r"schedule.score = 'accuracy', but must be one of"),
    ("score-a-list", "[schedule]\nscore = ['error']", r"schedule.score = \['error'\], but must be one of"),
    ("random-search-huge", "[schedule]\nkind = 'random_search'\nbudget = 1000000000000\nlongest = 1",
     r"1000000000000.* arms, but .* at most"),
    ("hyperband-huge", "[schedule]\nkind = 'hyperband'\nbudget = 1000000000000\nlongest = 10\nfill = true",
     r"arms, but .* at most"),
    ("hyperband-huge-short", "[schedule]\nkind = 'hyperband'\nbudget = 100000000000000\nlongest = 1",
     r"arms, but .* at most"),
    ("halving-huge", "[schedule]\nbudget = 100000000000000\nlongest = 100000000000\neta = 10\neliminations = 9",
     r"arms, but .* at most"),
    ("hyperband-fill", "[schedule]\nkind = 'hyperband'\nfill = 'yes'", r"schedule.fill = 'yes', but must be true or false"),
    ("together-zero", "[schedule]\nkind = 'random_search'\ntogether = 0", r"schedule.together = 0, but must be a whole"),
    ("together-a-text", "[schedule]\nkind = 'random_search'\ntogether = 'all'", r"schedule.together = 'all', but must be"),
    # FedEx
    ("k-zero", "[fedex]\nk = 0", r"fedex.k = 0, but must be a whole number >= 1"),
    ("k-huge", "[fedex]\nk = 100000000", r"fedex.k = 100000000, but must be at most"),
    ("k-larger", "[fedex]\nk = 1000000000000000000000000", r"fedex.k = 10+, but must be at most"),
    ("k-real", "[fedex]\nk = 3.0", r"fedex.k = 3.0, but must be a whole number >= 1"),
    ("eps-negative", "[fedex]\neps = -0.1", r"fedex.eps = -0.1, but must be >= 0"),
    ("eps-nan", "[fedex]\neps = nan", r"fedex.eps = nan, but must be >= 0"),
    ("eps-infinite", "[fedex]\neps = inf", r"fedex.eps = inf, but must be"),
    ("eps-a-text", "[fedex]\neps = '0.1'", r"fedex.eps = '0.1', but must be >= 0"),
    ("gamma-two", "[fedex]\ngamma = 2", r"fedex.gamma = 2, but must be in \[0, 1\] \(or left out"),
    ("step", "[fedex]\nstep = 'agressive'", r"fedex.step = 'agressive', .*did you mean 'aggressive'\?"),
    ("metric", "[fedex]\nmetric = 'acc'", r"fedex.metric = 'acc', but must be one of"),
    ("signal", "[fedex]\nsignal = 1", r"fedex.signal = 1, but must be one of"),
    ("cutoff-nan", "[fedex]\ncutoff = nan", r"fedex.cutoff = nan, but must be >= 0"),
    ("tries-too-many", "[fedex]\nk = 3\ntries = 4", r"fedex.tries = 4, but must be from 1 to the 3 candidates"),
    ("tries-zero", "[fedex]\ntries = 0", r"fedex.tries = 0, but must be from 1 to the 27 candidates"),
    ("tries-a-text", "[fedex]\ntries = 'most'", r"fedex.tries = 'most', but must be a whole number or 'all'"),
    # Spaces
    ("range-turned", "[client]\nlr = { low = 1.0, high = 0.1 }", r"client.lr: Float\(1.0, 0.1\): low must not exceed high"),
    ("range-log-of-zero", "[client]\nlr = { low = 0, high = 1, log = true }", r"client.lr: .*low must be > 0 on a log"),
    ("range-log-negative", "[client]\nlr = { low = -1.0, high = 1.0, log = true }", r"client.lr: .*low must be > 0"),
    ("range-half", "[client]\nlr = { low = 1 }", r"client.lr = \{'low': 1.0\}: a range needs low and high"),
    ("range-empty", "[client]\nlr = {}", r"client.lr = \{\}: a range needs low and high"),
    ("range-nan", "[client]\nlr = { low = nan, high = 1.0 }", r"client.lr: .*both ends must be finite numbers"),
    ("range-infinite", "[client]\nlr = { low = 0.1, high = inf }", r"client.lr: .*both ends must be finite numbers"),
    ("range-of-texts", "[client]\nlr = { low = 'a', high = 'b' }", r"client.lr: .*both ends must be finite numbers"),
    ("range-log-a-text", "[client]\nlr = { low = 1, high = 2, log = 'yes' }", r"client.lr: log = 'yes', but must be true or"),
    ("range-log-a-number", "[client]\nlr = { low = 1, high = 2, log = 1 }", r"client.lr: log = 1, but must be true or false"),
    ("range-beyond-64-bits", f"[client]\nepochs = {{ low = 1, high = {2**70} }}", r"client.epochs: Int\(1, 1180.*\): .*at most"),
    ("range-of-powers", "[client]\nbatch = { low = 3, high = 8, power_of_two = true }", r"client.batch: .*3 is not a power"),
    ("range-of-real-powers", "[client]\nbatch = { low = 2.5, high = 8, power_of_two = true }", r"2.5 is not a power"),
    ("range-of-powers-and-log", "[client]\nbatch = { low = 2, high = 8, power_of_two = true, log = true }",
     r"client.batch: .*power_of_two.*log"),
    ("range-not-whole", "[client]\nepochs = { low = 1.5, high = 3 }", r"client.epochs = 1.5, but must be a whole number"),
    ("one-minus-and-more", "[server]\ngamma = { one_minus = { low = 0.1, high = 0.2 }, low = 1 }", r"one_minus stands alone"),
    ("one-minus-a-list", "[server]\ngamma = { one_minus = [0.1] }", r"one_minus takes a range of real numbers"),
    ("one-minus-a-range-of-ints", "[server]\ngamma = { one_minus = { low = 0, high = 1 } }", r"one_minus takes a range"),
    ("choices-empty", "[client]\nlr = []", r"client.lr: Choice\(\[\]\): give a list of at least one value"),
    ("choices-of-lists", "[client]\nlr = [[0.1]]", r"client.lr: Choice\(\[\[0.1\]\]\): \[0.1\] is not a number, string or"),
    ("choices-of-tables", "[client]\nlr = [{ a = 1 }]", r"client.lr: Choice.*is not a number, string or boolean"),
    ("choices-twice", "[client]\nlr = [0.1, 0.1]", r"client.lr: Choice\(\[0.1, 0.1\]\): 0.1 is there twice"),
    ("choices-nan", "[client]\nlr = [0.1, nan]", r"client.lr: Choice\(\[0.1, nan\]\): nan is not a number"),
    ("choices-of-a-text", "[client]\nlr = ['a']", r"client.lr = 'a', but must be a number"),
    ("value-a-date", "[client]\nlr = 1979-05-27", r"client.lr = datetime.date\(1979, 5, 27\) is no domain"),
    ("value-a-time", "[client]\nlr = 07:32:00", r"client.lr = datetime.time\(7, 32\) is no domain"),
    ("value-negative", "[client]\nlr = -0.1", r"client.lr = -0.1, but must be >= 0"),
    ("value-true", "[client]\nlr = true", r"client.lr = True, but must be a number"),
    ("value-nan", "[client]\nlr = nan", r"client.lr = nan, but must be a number"),
    ("value-halves", "[client]\nepochs = 1.5", r"client.epochs = 1.5, but must be a whole number"),
    ("value-too-large", "[server]\nmomentum = 2.0", r"server.momentum = 2.0, but must be <= 1"),
    ("value-huge", f"[client]\nepochs = 1{'0' * 400}", r"client.epochs = 10+ ?\.\.\., but must be"),
    ("batch-zero", "[client]\nbatch = 0", r"client.batch = 0, but must be >= 1"),
    ("epochs-of-a-billion", "[client]\nepochs = [1, 10000000000000]", r"client.epochs = 10000000000000, but must be <="),
    ("when-a-number", "[client]\nlr = { low = 0.1, high = 1.0, when = 3 }", r"client.lr: When\(.*give what it depends on"),
    ("when-unknown", "[client]\nlr = { low = 0.1, high = 1.0, when = { foo = 1 } }", r"client.lr depends on 'foo', which is no"),
    ("when-itself", "[client]\nlr = { low = 0.1, high = 1.0, when = { lr = 0.5 } }", r"client.lr depends on itself: leave out"),
    # Constraints, recipes, privacy, executors
    ("constraints-a-text", "constraints = 'lr < 1'", r"constraints = 'lr < 1', but must be a list such as"),
    ("constraints-half", "constraints = ['lr <']", r"constraint 'lr <' cannot be read, but must compare"),
    ("constraints-code", "constraints = ['(lambda: lr)() < 1']", r"constraint .* has '\(lambda: lr\)\(\)', but must compare"),
    ("constraints-of-much-text", "constraints = [\"'a' * 99999999999999 == lr\"]", r"constraint .* has .*, but must compare"),
    ("constraints-that-nothing-meets", "constraints = ['lr < 0']", r"of 1000 configurations drawn none meets lr < 0: widen"),
    ("auto-budget-huge", "[auto]\nbudget = 100000000000000", r"schedule.budget = 10+, but must be at most 1000000"),
    ("auto-vary-a-number", "[auto]\nbudget = 100\nvary = 3", r"vary = 3, but must be names of hyperparameters"),
    ("auto-vary-unknown", "[auto]\nbudget = 100\nvary = ['foo']", r"vary has 'foo', but there is no range of it; known: "),
    ("auto-decades-huge", "[auto]\nbudget = 100\ndecades = 1e6", r"decades = 1000000.0, but must be in \[0, 100\]"),
    ("auto-no-budget", "[auto]\narms = 3", r"auto.budget is missing, and has no default"),
    ("prior-a-number", "[tuner]\nprior = 3", r"fedex.prior = 3, but must be a list of tables"),
    ("prior-of-numbers", "[tuner]\nprior = [3]", r"fedex.prior has 3, but must have tables of candidates and their theta"),
    ("privacy-epsilon-nan", "[privacy]\nepsilon = nan", r"privacy.epsilon = nan, but must be in \[0, 100\]"),
    ("privacy-kind", "[privacy]\nkind = 'laplace'", r"privacy.kind = 'laplace', but must be one of"),
    ("executor-unknown", "executor = 'rayy'", r"executor.kind = 'rayy', but must be one of .*did you mean 'ray'\?"),
    ("include-of-numbers", "include = [3]", r"include has 3, but must have tables such as"),
    ("patience-nan", "patience = nan", r"patience = nan, but must be a whole number >= 1"),
    ("deep-list", "[client]\nlr = " + "[" * 60 + "]" * 60, r"client.lr: Choice"),
]  # fmt: skip

# id, the bytes of the file, what the message must match.
FILES = [
    ("empty", b"", r"study.toml: no problem is given: problem = 'digits'|no problem is given"),
    ("no-problem", b"cohort = 3", r"no problem is given: problem = 'digits'"),
    ("comment", b"# nothing", r"no problem is given"),
    ("not-toml", b"problem = digits", r"study.toml is not TOML: .*line 1"),
    ("json", b'{"problem": "digits"}', r"study.toml is not TOML: .*line 1"),
    ("yaml", b"problem: digits\n", r"study.toml is not TOML: .*line 1"),
    ("binary", bytes(range(256)), r"study.toml is not TOML: .*(utf-8|UTF-8)"),
    ("zip", b"PK\x03\x04\x14\x00\x00\x00\x08\x00", r"study.toml is not TOML"),
    ("nul", b"problem = 'toys:problem'\x00", r"study.toml is not TOML: .*line 1"),
    ("latin-1", 'problem = "größe"'.encode("latin-1"), r"study.toml is not TOML: .*(utf-8|UTF-8)"),
    ("utf-16", 'problem = "toys:problem"'.encode("utf-16"), r"study.toml is not TOML: .*(utf-8|UTF-8)"),
    ("utf-32", 'problem = "toys:problem"'.encode("utf-32"), r"study.toml is not TOML: .*(utf-8|UTF-8)"),
    ("key-twice", b"cohort = 3\ncohort = 4", r"study.toml is not TOML: Cannot overwrite a value"),
    ("table-twice", b"[schedule]\n[schedule]", r"study.toml is not TOML: .*line 2"),
    ("unclosed", b"[schedule", r"study.toml is not TOML: Expected ']'"),
    ("no-value", b"cohort =", r"study.toml is not TOML: Invalid value"),
    ("deep", b"a = " + b"[" * 5000, r"study.toml is not TOML: .*(nested|deep)"),
    ("deep-closed", b"a = " + b"[" * 5000 + b"]" * 5000, r"study.toml is not TOML: .*(nested|deep)"),
    ("deep-inline", b"a = " + b"{a=" * 5000, r"study.toml is not TOML: .*(nested|deep)"),
    ("deep-dotted", b".".join([b"a"] * 3000) + b" = 1", r"no setting 'a'"),
    ("number-of-digits", b"cohort = 1" + b"0" * 5000, r"study.toml is not TOML: .*digits"),
    ("real-overflow", b'problem = "toys:problem"\ncooling = 1e999', r"cooling = inf, but must be in \[0, 1\]"),
    ("date-impossible", b"cohort = 2020-02-31", r"study.toml is not TOML"),
    ("surrogate", b'problem = "\\ud800"', r"study.toml is not TOML: .*line 1"),
    ("tabs", b"\tproblem\t=\t3", r"problem = 3, but must be a string"),
    ("long-line", b"x = " + b"9" * 100000, r"study.toml is not TOML"),
]  # fmt: skip

# id, what is done to make the file, what the message must match.
PLACES = [
    ("absent", lambda p: None, r"cannot read study.toml: No such file or directory; 'fedtuner init' writes"),
    ("folder", lambda p: p.mkdir(), r"cannot read study.toml: Is a directory"),
    ("loop", lambda p: p.symlink_to(p), r"cannot read study.toml: Too many levels of symbolic links"),
    ("dangling", lambda p: p.symlink_to("nowhere"), r"cannot read study.toml: No such file"),
    ("pipe", os.mkfifo, r"cannot read study.toml: it is no file"),
]  # fmt: skip

# id, the text, what the message must match.
SUITES = [
    ("no-axes", "title = 'x'", r"the suite has no \[axes\]"),
    ("key", "titel = 'x'", r"no setting 'titel' in a suite; did you mean 'title'\?"),
    ("axes-a-list", "axes = []", r"axes = \[\], but must be a table"),
    ("axis-empty", "[axes.a]", r"axes.a = \{\}, but must be named tables of settings"),
    ("axis-of-numbers", "[axes.a]\nx = 1", r"axes.a = \{'x': 1\}, but must be named tables"),
    ("axis-of-a-long-name", f"[axes.{'9' * 3000}]\nx = 1", r"axes.9+ \.\.\. 9+ = \{'x': 1\}, but must be named tables"),
    ("value-of-a-long-name", f"[axes.a.{'9' * 3000}]\nseed = 1", r"9+ \.\.\. 9+: seed = 1, but a suite's seeds"),
    ("axis-of-no-values", "[axes.a]\nkey = 'fedex.eps'\nvalues = []", r"axes.a: key must be a setting .* values a list"),
    ("axis-key-a-number", "[axes.a]\nkey = 3\nvalues = [1]", r"axes.a: key must be a setting such as"),
    ("axis-key-too-deep", "[axes.a]\nkey = 'a.b.c'\nvalues = [1]", r"axes.a: key must be a setting such as"),
    ("axis-values-twice", "[base]\nproblem = 'toys:problem'\n[axes.a]\nkey = 'cohort'\nvalues = [3, 3]", r"3, seed 0, twice"),
    ("base-a-number", "base = 3\n[axes.a.b]\ncohort = 3", r"base = 3, but must be a table: \[base\]"),
    ("base-key", "[base]\nproblm = 'x'\n[axes.a.b]\ncohort = 3", r"b: no setting 'problm'; did you mean 'problem'\?"),
    ("no-problem", "[axes.a.b]\ncohort = 3", r"b: no problem is given"),
    ("preset", "[axes.a.b]\npreset = 'digts'", r"no preset and no file 'digts'; did you mean 'digits'\?"),
    ("preset-a-number", "[axes.a.b]\npreset = 3", r"preset.*3"),
    ("seeds-zero", "seeds = 0\n[axes.a.b]\nproblem = 'toys:problem'", r"b: seeds = .*, but must be how many"),
    ("seeds-a-text", "seeds = 'x'\n[axes.a.b]\nproblem = 'toys:problem'", r"b: seeds = 'x', but must be how many"),
    ("seeds-huge", "seeds = 1000000000000\n[axes.a.b]\nproblem = 'toys:problem'", r"b: seeds = 1000000000000, but .* at most"),
    ("seeds-of-texts", "seeds = ['a']\n[axes.a.b]\nproblem = 'toys:problem'", r"b: seeds = \['a'\], but must be how many"),
    ("seeds-twice", "seeds = [1, 1]\n[axes.a.b]\nproblem = 'toys:problem'", r"b, seed 1, twice"),
    ("online-negative", "online = -1\n[axes.a.b]\nproblem = 'toys:problem'", r"b: online .* whole number >= 0"),
    ("every-arm-a-text", "every_arm = 'yes'\n[axes.a.b]\nproblem = 'toys:problem'", r"b: .*every_arm .*true or false"),
    ("columns", "columns = 'c'\n[axes.a.b]\nproblem = 'toys:problem'", r"columns = 'c', but must be an axis"),
    ("along-a-number", "along = 3\n[axes.a.b]\nproblem = 'toys:problem'", r"along = 3, but must be an axis"),
    ("columns-a-list", "columns = ['a']\n[axes.a.b]\nproblem = 'toys:problem'", r"columns = \['a'\], but must be an axis"),
    ("paper-unknown", "[paper]\nx = [1, 2, 3]\n[axes.a.b]\nproblem = 'toys:problem'", r"paper.'x' is no study"),
    ("paper-of-two", "[paper]\nb = [1, 2]\n[axes.a.b]\nproblem = 'toys:problem'", r"paper.'b' = \[1, 2\], but must be \[mean"),
    ("figures-a-table", "[figures]\nkind = 'x'\n[axes.a.b]\nproblem = 'toys:problem'", r"figures must be tables: \[\[figures\]\]"),
    ("fedex-off-and-on", "[axes.a.b]\nfedex = false\n[axes.c.d]\nfedex = { k = 3 }", r"one axis has fedex = false"),
    ("title-a-number", "title = 3\n[axes.a.b]\nproblem = 'toys:problem'", r"title = 3, but must be a string"),
    ("seed-in-base", "[base]\nproblem = 'toys:problem'\nseed = 3\n[axes.a.b]\ncohort = 3", r"seed.*seeds"),
]  # fmt: skip


def with_study(text: str) -> str:
    """A study of toys whose last settings are wrong; those of the top level stand before tables."""
    own = [line for line in SMALL.splitlines() if not text.lstrip("[").startswith(line.partition(" ")[0])]
    return "\n".join((text, *own) if not text.lstrip().startswith("[") and "\n[" not in text else (*own, text))


@pytest.mark.parametrize(("text", "match"), [pytest.param(*row[1:], id=row[0]) for row in SETTINGS])
def test_a_setting_that_is_wrong(text: str, match: str, tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(with_study(text))
    refused(lambda: spec.parse(spec.read(str(file))[1]).study(None, 1), match)


@pytest.mark.parametrize(("data", "match"), [pytest.param(*row[1:], id=row[0]) for row in FILES])
def test_a_file_that_is_no_study(data: bytes, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_bytes(data)
    refused(lambda: spec.parse(spec.read("study.toml")[1]).study(None, 1), match)


@pytest.mark.parametrize(("make", "match"), [pytest.param(*row[1:], id=row[0]) for row in PLACES])
def test_a_place_that_is_no_file(make: object, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("study.toml"))
    refused(lambda: spec.read("study.toml"), match)


@pytest.mark.parametrize(("text", "match"), [pytest.param(*row[1:], id=row[0]) for row in SUITES])
def test_a_suite_that_is_wrong(text: str, match: str, tmp_path: Path) -> None:
    file = tmp_path / "suite.toml"
    file.write_text(text)
    refused(lambda: suite.read(file), match)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_bytes(b"\xef\xbb\xbf" + toys.STUDY.encode())
    assert spec.parse(spec.read(str(file))[1]).problem == "toys:problem"
