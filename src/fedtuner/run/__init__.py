"""Running a study: sessions, studies, executors and stores."""
